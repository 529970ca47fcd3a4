"""Where the time of tasks goes, and what checkpoints wait for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headrace.engine.contract.messages import CallNumbers, SubtaskNumbers
from headrace.engine.coordinator.coordinator import CoordinatorStatistics
from headrace.engine.coordinator.pending import CheckpointUnderWay
from headrace.engine.observation.facts import (
    awaited,
    call_counts,
    gil_share,
    operator_shares,
    storage_wait,
)
from headrace.recovery.metadata import SubtaskSnapshot
from tests.engine.cli.looks import CHECKPOINT, COMPLETE, PLAN, numbers_of, status_of

S = 1_000_000_000
CHAIN = PLAN.tasks[1]


def numbers(
    busy_ns: int, *calls: CallNumbers, idle_ns: int = 0, **more: int | None
) -> SubtaskNumbers:
    told = numbers_of(1, busy_ns=busy_ns, idle_ns=idle_ns)
    return msgspec.structs.replace(told, calls=list(calls), **more)


NOTHING = numbers(0, operator=None)


def test_an_operator_has_its_share_of_the_time() -> None:
    then = numbers(S, CallNumbers(0, S // 2, [1]), operator=None)
    now = numbers(4 * S, CallNumbers(0, 2 * S, [1]), idle_ns=3 * S, operator=None)
    assert operator_shares(CHAIN, [(then, now)]) == {"totals": 0.25}


def test_a_call_under_way_counts() -> None:
    now = numbers(4 * S, CallNumbers(0, S, [1]), operator=1, call_ns=3 * S)
    assert operator_shares(CHAIN, [(NOTHING, now)]) == {"totals": 0.25, "out": 0.75}


def test_calls_are_counted_between_two_looks() -> None:
    then = numbers(S, CallNumbers(0, 5, [1, 2]))
    now = numbers(2 * S, CallNumbers(0, 9, [1, 5, 3]))
    assert call_counts([(then, now)], 0) == [0, 3, 3]
    assert call_counts([(then, now)], 1) == []


def test_the_gil_is_kept_for_a_share_of_the_time() -> None:
    now = numbers(3 * S, idle_ns=S, gil_ns=2 * S)
    assert gil_share([(NOTHING, now), (NOTHING, numbers(S))]) == 0.5


def test_a_complete_checkpoint_waited_for_storage_as_long_as_its_slowest_part() -> None:
    parts = [SubtaskSnapshot(0, i, False, [], [], [], async_ns=i * S) for i in (1, 2)]
    first = msgspec.structs.replace(CHECKPOINT, checkpoint=6, created_ms=1_000)
    last = msgspec.structs.replace(CHECKPOINT, subtasks=parts, duration_ns=3 * S, created_ms=5_000)
    status = status_of(notices=tuple(replace(COMPLETE, checkpoint=c) for c in (first, last)))
    wait = storage_wait(status, 9_000)
    assert wait is not None
    assert (wait.checkpoint, wait.waited_ms, wait.took_ms) == (7, 2_000.0, 3_000.0)
    assert wait.every_ms == 4_000.0


@pytest.mark.parametrize(("cut", "waits_for"), [(8, "storage"), (7, "out #0")])
def test_one_under_way_waits_for_subtasks_and_then_for_storage(cut: int, waits_for: str) -> None:
    status = replace(
        status_of(numbers(S, cut=cut)),
        places={(1, 0): 3},
        coordinator=CoordinatorStatistics((CheckpointUnderWay(8, "aligned", 1_000, False, (3,)),)),
    )
    assert awaited(status, PLAN.tasks, 9_000) == f"chk-8 has waited 8 s for {waits_for}"
    wait = storage_wait(status, 9_000)
    assert (wait is not None) == (waits_for == "storage")
