"""Before a coordinator begins: who comes, who is started again, what is fetched ahead, and what
is kept for the machine.
"""

from __future__ import annotations

import pytest

from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.drivers.early_workers import EarlyWorkers, StateFetched
from headrace.recovery.handles import SharedFile


def registers(worker: int, connection: int) -> d.MessageReceived:
    return d.MessageReceived(connection, m.Register(worker, 0, "::1", 4711, 1))


def file(number: int) -> SharedFile:
    return SharedFile(f"{number}.sst", f"shared/{number}", 100, "0" * 16)


@pytest.fixture
def early() -> EarlyWorkers:
    return EarlyWorkers(2)


@pytest.fixture
def there(early: EarlyWorkers) -> EarlyWorkers:
    early.take(registers(0, 10))
    early.take(registers(1, 11))
    assert early.missing == []
    return early


def test_a_worker_that_ends_while_it_starts_is_started_again_but_not_for_ever(
    early: EarlyWorkers,
) -> None:
    for number in range(3):
        assert early.take(d.WorkerExited(1, number, "exit code 1")) == [d.ReplaceWorker(1)]
    assert (early.missing, early.failure) == ([0, 1], "")
    assert early.take(d.WorkerExited(0, 0, "exit code 1")) == []
    assert early.failure == "worker 0 ended before it registered: exit code 1"
    assert early.events == []


def test_a_launcher_that_fails_ends_the_wait(early: EarlyWorkers) -> None:
    early.take(d.LauncherFailed("no cluster"))
    assert early.failure == "no cluster"


def test_each_worker_is_asked_for_its_own_files_and_the_sum_is_told(there: EarlyWorkers) -> None:
    assert there.fetch({0: [file(1)], 1: [file(1), file(2)]}) == [
        (10, m.FetchAhead([file(1)])),
        (11, m.FetchAhead([file(1), file(2)])),
    ]
    there.take(StateFetched(10, 100))
    assert there.fetching == {11}
    there.take(StateFetched(11, 200))
    assert (there.fetching, there.fetched_bytes) == (set(), 300)


def test_a_worker_without_state_is_not_asked(there: EarlyWorkers) -> None:
    assert there.fetch({0: [], 1: [file(1)]}) == [(11, m.FetchAhead([file(1)]))]
    there.take(StateFetched(10, 7))
    assert there.fetched_bytes == 0, "nor listened to"


def test_a_worker_that_was_started_again_is_asked_over_its_new_connection(
    there: EarlyWorkers,
) -> None:
    there.take(registers(0, 12))
    assert there.fetch({0: [file(1)]}) == [(12, m.FetchAhead([file(1)]))]


def test_one_that_dies_while_it_fetches_is_not_waited_for_and_is_the_machines_business(
    there: EarlyWorkers,
) -> None:
    there.fetch({0: [file(1)], 1: [file(2)]})
    lost, exited = d.ConnectionLost(10, "killed"), d.WorkerExited(0, 0, "killed")
    assert there.take(lost) == there.take(exited) == []
    assert there.fetching == {11}
    assert there.events[-2:] == [lost, exited]


def test_all_that_came_is_kept_in_order(there: EarlyWorkers) -> None:
    heartbeat = d.MessageReceived(10, m.Heartbeat(0, []))
    there.take(heartbeat)
    there.fetch({0: [file(1)]})
    there.take(StateFetched(10, 100))
    assert there.events == [registers(0, 10), registers(1, 11), heartbeat]
