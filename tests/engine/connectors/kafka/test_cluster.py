"""A cluster is asked until it answers, and its errors have names."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer import OffsetFetchRequest

from headrace.engine.connectors.kafka.cluster import (
    GROUP,
    BrokerError,
    Cluster,
    Partition,
    error_name,
    parse_servers,
)
from headrace.engine.connectors.kafka.connection import Address, BrokerLost, Connection
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.contract.errors import AddressUnreachable, UserError

from .fake import FakeCluster


def test_servers_are_parsed() -> None:
    assert parse_servers("a:1, b") == (Address("a", 1), Address("b", 9092))
    assert parse_servers(["[::1]:3", "[::1]"]) == (Address("::1", 3), Address("::1", 9092))
    assert [str(each) for each in parse_servers("[::1]:3,a:1")] == ["[::1]:3", "a:1"]


@pytest.mark.parametrize("servers", ["", "a:b", "a:0", "a:65536", "http://a:80", [], [""], "a,"])
def test_addresses_that_are_none_are_refused(servers: str | list[str]) -> None:
    with pytest.raises(UserError, match="servers"):
        parse_servers(servers)


def test_any_broker_answers_for_those_that_are_away() -> None:
    fake = FakeCluster(brokers=2)
    fake.create("t", 2)
    cluster = fake.client()
    assert cluster.topics(["t"])["t"].leaders == {0: 0, 1: 1}
    assert cluster.leader(Partition("t", 1)) == Address("fake", 9001)
    fake.down.add(0)
    assert cluster.topics(["t"])["t"].leaders == {0: -1, 1: 1}
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
        cluster.leader(Partition("t", 0))
    fake.down.add(1)
    with pytest.raises(BrokerLost, match=r"broker 1 is down; .*broker 0 is down"):
        cluster.topics(["t"])


def test_topics_that_are_not_there_carry_an_error() -> None:
    fake = FakeCluster()
    assert fake.client().topics(["t"])["t"].error == 3
    fake.topic_errors["t"] = 5
    with pytest.raises(BrokerError, match=r"topic 't' of fake:9000: LEADER_NOT_AVAILABLE \(5\)"):
        fake.client().topics(["t"])


class Calls:
    """Fails with errors, one a call, and then returns how often it was called."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.count


class Clock:
    """Time passes by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, pause: float) -> None:
        self.now += pause
        self.pauses.append(pause)


def patient(clock: Clock) -> Cluster:
    return Cluster(
        parse_servers("a:1"),
        Security(),
        patience_s=10,
        connect=Connection,
        clock=lambda: clock.now,
        sleep=clock.sleep,
    )


def test_errors_that_pass_are_waited_for_with_growing_pauses() -> None:
    clock = Clock()
    errors = [BrokerError("x", code) for code in (14, 15, 16, 51)]
    assert patient(clock).patiently(Calls(*errors, BrokerLost("gone"))) == 6
    assert clock.pauses == [0.02, 0.04, 0.08, 0.16, 0.32]


def test_patience_ends() -> None:
    clock = Clock()
    with pytest.raises(
        AddressUnreachable, match="Kafka at a:1 could not be reached for 10 s: gone"
    ):
        patient(clock).patiently(Calls(*[BrokerLost("gone")] * 100))
    assert 9 < clock.now <= 10
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        patient(clock).patiently(Calls(*[BrokerError("x", 16)] * 100))


def test_errors_that_do_not_pass_are_told_at_once() -> None:
    clock = Clock()
    with pytest.raises(BrokerError, match="x: TOPIC_AUTHORIZATION_FAILED"):
        patient(clock).patiently(Calls(BrokerError("x", 29)))
    assert clock.pauses == []


def test_a_coordinator_that_moved_is_looked_up_again() -> None:
    fake = FakeCluster()
    cluster = fake.client()
    request = OffsetFetchRequest(group_id="g", topics=[])
    assert cluster.at_coordinator(GROUP, "g", request).error_code == 0
    fake.group_error = 16
    with pytest.raises(BrokerError, match="OffsetFetchRequest for 'g' at fake:9000"):
        cluster.at_coordinator(GROUP, "g", request)
    fake.group_error = 30
    assert cluster.at_coordinator(GROUP, "g", request).error_code == 30


def test_unknown_errors_have_a_number() -> None:
    assert error_name(3) == "UNKNOWN_TOPIC_OR_PARTITION (3)"
    assert "(9999)" in error_name(9999)
