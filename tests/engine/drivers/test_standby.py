"""Before a coordinator begins: who comes, who is started again, what is fetched ahead, and what is kept for the machine."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from headrace.channels.wire import ControlFrame
from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.drivers.standby import InboxItem, Standby
from headrace.engine.network.network import ConnectionId, Disconnected, Received
from headrace.recovery.metadata import SharedFile

SHORT_S = 0.02
LONG_S = 30.0


class FakeNetwork:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, connection: ConnectionId, frame: ControlFrame) -> None:
        self.sent.append((connection, m.decode_for_worker(frame.body)))


class Before:
    """A standby with what it is given."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()
        self.network = FakeNetwork()
        self.replaced: list[int] = []
        self.standby = Standby(self.inbox, cast(Any, self.network), self.replaced.append)

    def said(self, connection: int, message: m.ToCoordinator | m.FetchedAhead) -> None:
        frame = ControlFrame(m.encode(message))
        self.inbox.put([Received(ConnectionId(connection), frame)])

    def registers(self, worker: int, connection: int) -> None:
        self.said(connection, m.Register(worker, 0, "::1", 4711, 1))


@pytest.fixture
def before() -> Before:
    return Before()


def file(number: int) -> SharedFile:
    return SharedFile(f"{number}.sst", f"shared/{number}", 100, "0" * 16)


def both_there(before: Before) -> None:
    before.registers(0, 10)
    before.registers(1, 11)
    assert before.standby.await_workers(2, LONG_S) == ""


def test_a_worker_that_ends_while_it_starts_is_started_again_but_not_for_ever(
    before: Before,
) -> None:
    for number in range(3):
        before.inbox.put(d.WorkerExited(1, number, "exit code 1"))
    assert before.standby.await_workers(2, SHORT_S) == "workers 0, 1 did not start in time"
    assert before.replaced == [1, 1, 1]
    for number in range(4):
        before.inbox.put(d.WorkerExited(0, number, "exit code 1"))
    told = before.standby.await_workers(2, SHORT_S)
    assert told == "worker 0 ended before it registered: exit code 1"
    assert before.standby.early == []


def test_a_launcher_that_fails_ends_the_wait(before: Before) -> None:
    before.inbox.put(d.LauncherFailed("no cluster"))
    assert before.standby.await_workers(2, LONG_S) == "no cluster"


def test_each_worker_is_asked_for_its_own_files_and_the_sum_is_told(before: Before) -> None:
    both_there(before)
    before.said(10, m.FetchedAhead(100))
    before.said(11, m.FetchedAhead(200))
    files = {0: [file(1)], 1: [file(1), file(2)]}
    assert before.standby.fetch_ahead(files, LONG_S) == 300
    assert before.network.sent == [
        (10, m.FetchAhead([file(1)])),
        (11, m.FetchAhead([file(1), file(2)])),
    ]


def test_a_worker_without_state_is_not_asked(before: Before) -> None:
    both_there(before)
    before.said(11, m.FetchedAhead(100))
    assert before.standby.fetch_ahead({0: [], 1: [file(1)]}, LONG_S) == 100
    assert [connection for connection, _ in before.network.sent] == [11]


def test_a_worker_that_was_started_again_is_asked_over_its_new_connection(before: Before) -> None:
    before.registers(0, 10)
    before.registers(0, 12)
    before.registers(1, 11)
    assert before.standby.await_workers(2, LONG_S) == ""
    before.said(12, m.FetchedAhead(100))
    assert before.standby.fetch_ahead({0: [file(1)]}, LONG_S) == 100
    assert [connection for connection, _ in before.network.sent] == [12]


def test_one_that_dies_while_it_fetches_is_not_waited_for_and_is_the_machines_business(
    before: Before,
) -> None:
    both_there(before)
    lost: list[Any] = [Disconnected(ConnectionId(10), "killed")]
    before.inbox.put(lost)
    before.said(11, m.FetchedAhead(100))
    assert before.standby.fetch_ahead({0: [file(1)], 1: [file(2)]}, LONG_S) == 100
    assert lost in before.standby.early


def test_what_takes_too_long_is_not_waited_for(before: Before) -> None:
    both_there(before)
    before.said(11, m.FetchedAhead(100))
    assert before.standby.fetch_ahead({0: [file(1)], 1: [file(2)]}, SHORT_S) == 100


def test_all_that_came_is_kept_in_order(before: Before) -> None:
    both_there(before)
    heartbeat = [Received(ConnectionId(10), ControlFrame(m.encode(m.Heartbeat(0, []))))]
    before.inbox.put(cast(InboxItem, heartbeat))
    before.said(10, m.FetchedAhead(100))
    before.standby.fetch_ahead({0: [file(1)]}, LONG_S)
    assert len(before.standby.early) == 4
    assert before.standby.early[2] is heartbeat
