"""Errands: who asks waits for nothing, and nothing is left open."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.engine.connectors.kafka.cluster import BrokerError, Cluster
from headrace.engine.connectors.kafka.connection import BrokerLost
from headrace.engine.connectors.kafka.errands import Errands

from .fake import FakeCluster


class Later:
    """Starts nothing before it is told to."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def run(self) -> None:
        while self._calls:
            self._calls.pop(0)()


def ports(cluster: Cluster) -> list[int]:
    return [broker.port for broker in cluster.brokers()]


def test_the_answer_is_there_when_the_errand_is_over() -> None:
    later = Later()
    errands = Errands(FakeCluster(brokers=2).client(), later)
    errand = errands.go(ports)
    assert not errand.is_over
    later.run()
    assert errand.is_over
    assert errand.result() == [9000, 9001]
    assert errands.go(lambda cluster: str(cluster)).is_over is False


def test_an_errand_waits_in_a_thread() -> None:
    goes_on = threading.Event()

    def question(cluster: Cluster) -> bool:
        return goes_on.wait(60.0)

    errands = Errands(FakeCluster().client())
    errand = errands.go(question)
    errand.wait(0.0)
    assert not errand.is_over
    goes_on.set()
    errand.wait(60.0)
    assert errand.result()
    errands.close()


def test_errors_are_raised_where_the_answer_is_asked_for() -> None:
    later = Later()
    errands = Errands(FakeCluster(down={0}).client(), later)
    errand = errands.go(ports)
    later.run()
    with pytest.raises(BrokerLost):
        errand.result()


def test_an_answer_that_comes_after_the_end_is_handed_to_nobody_who_asked() -> None:
    later = Later()
    cluster = FakeCluster().client()
    errands = Errands(cluster, later)
    unheard: list[list[int]] = []
    errands.go(ports, unheard=unheard.append)
    errands.close()
    later.run()
    assert unheard == [[9000]]
    assert not cluster._connections


def test_the_end_lets_a_question_be_repeated_no_more() -> None:
    later = Later()
    errands = Errands(FakeCluster().client(), later)
    tries = []

    def question(cluster: Cluster) -> None:
        tries.append(1)
        raise BrokerError("t-0", 5)

    errand = errands.go(lambda cluster: cluster.patiently(lambda: question(cluster), patience_s=60))
    errands.close()
    later.run()
    assert len(tries) == 1
    with pytest.raises(BrokerError):
        errand.result()
