"""The simulated network: in order within a connection, and every way in which one can end."""

from __future__ import annotations

from typing import Any

from headrace.engine.simulation.campaign.faults import FaultProfile, Faults
from headrace.engine.simulation.campaign.network import Network
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.scheduler import SECOND_NS, Scheduler

ADDRESS = ("host", 1)


class End:
    """An endpoint that notes what it hears."""

    def __init__(self) -> None:
        self.alive = True
        self.heard: list[Any] = []

    def connected(self, connection: int, greeting: Any) -> None:
        self.heard.append(("connected", greeting))

    def received(self, connection: int, message: Any) -> None:
        self.heard.append(message)

    def disconnected(self, connection: int, reason: str) -> None:
        self.heard.append("lost")


def connected() -> tuple[Scheduler, Network, End, End, int]:
    scheduler = Scheduler(1)
    network = Network(Faults(FaultProfile(), scheduler, Coverage()))
    client, server = End(), End()
    network.listen(ADDRESS, server)
    return scheduler, network, client, server, network.connect(ADDRESS, client, "c", "s")


def run(scheduler: Scheduler) -> None:
    while scheduler.step():
        pass


def test_messages_of_a_connection_arrive_in_order_behind_the_greeting() -> None:
    scheduler, network, client, server, number = connected()
    for message in range(20):
        network.send(number, client, message)
        network.send(number, server, -message)
    run(scheduler)
    assert server.heard == [("connected", "c"), *range(20)]
    assert client.heard == [("connected", "s"), *(-message for message in range(20))]


def test_a_closed_connection_delivers_what_was_sent_before() -> None:
    scheduler, network, client, server, number = connected()
    network.send(number, client, "last")
    network.close(number, client)
    network.send(number, client, "too late")
    run(scheduler)
    assert server.heard[1:3] == ["last", "lost"]
    assert "lost" not in client.heard


def test_nobody_listens_at_an_unknown_address() -> None:
    scheduler, network, client, _, _ = connected()
    network.connect(("elsewhere", 1), client, "c", "s")
    run(scheduler)
    assert "lost" in client.heard


def test_both_ends_learn_of_a_severed_connection() -> None:
    scheduler, network, client, server, number = connected()
    run(scheduler)
    network.sever(number)
    run(scheduler)
    network.send(number, client, "into the void")
    run(scheduler)
    assert (client.heard[-1], server.heard[-1]) == ("lost", "lost")


def test_one_direction_of_a_half_open_connection_falls_silent_until_both_give_up() -> None:
    scheduler, network, client, server, number = connected()
    run(scheduler)
    network.half_open(number, 1)
    network.send(number, client, "unheard")
    network.send(number, server, "heard")
    run(scheduler)
    assert server.heard == [("connected", "c"), "lost"]
    assert client.heard == [("connected", "s"), "heard", "lost"]


def test_a_partition_holds_messages_up_and_loses_none() -> None:
    scheduler, network, client, server, number = connected()
    network.send(number, client, "before")
    network.partition(number, SECOND_NS)
    network.send(number, client, "during")
    run(scheduler)
    assert server.heard == [("connected", "c"), "before", "during"]
    assert scheduler.now_ns >= SECOND_NS


def test_the_peers_of_a_dead_process_learn_it_late_when_its_host_died_too() -> None:
    for host in (False, True):
        scheduler, network, client, server, number = connected()
        run(scheduler)
        client.alive = False
        network.vanish(client, host=host)
        run(scheduler)
        assert server.heard[-1] == "lost"
        assert (scheduler.now_ns > SECOND_NS // 10) == host
        assert number not in network.open_connections
