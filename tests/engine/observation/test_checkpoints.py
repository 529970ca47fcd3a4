"""Checkpoints as observations."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from headrace.engine.coordinator.coordinator import CoordinatorStatistics
from headrace.engine.coordinator.coordinator_events import FailedCheckpoint
from headrace.engine.coordinator.pending import CheckpointUnderWay
from headrace.engine.observation.checkpoints import SHOWN, checkpoints_of, complete_one
from headrace.engine.observation.observed import SubtaskObserved, TaskObserved
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import EdgeInfo, SubtaskSnapshot
from tests.engine.cli.looks import CHECKPOINT, COMPLETE, FAILED, status_of


def in_flight(task: int, rows: int) -> SubtaskSnapshot:
    buffers = [BufferHandle("chk-7/s", 16, 80, "0" * 16, rows, 0, rows)]
    handle = ChannelStateHandle(0, 0, 0, "input", 0, buffers, False)
    return SubtaskSnapshot(task, 0, False, [], [], [], [handle], async_ns=5_000_000)


def task(index: int, in_per_s: float) -> TaskObserved:
    subtask = SubtaskObserved(0, 0, in_per_s, 0, 0, 0, 0, 0, 0, 0)
    unknown = (None, None, None, None)
    shares = (1.0, 0.0, 0.0)
    return TaskObserved(
        index, "t", [], "operator", 1, in_per_s, 0, *shares, 0, *unknown, 0, 0, [subtask]
    )


UNALIGNED = msgspec.structs.replace(
    CHECKPOINT,
    mode="unaligned",
    subtasks=[in_flight(0, 100), in_flight(1, 300)],
    edges=[EdgeInfo("a->b/0", 0, 1)],
)


def test_complete_failed_and_running_ones_are_told_oldest_first() -> None:
    failed = replace(
        FAILED, failed=FailedCheckpoint(8, "unaligned", 1_000, False, "disk full"), at_ms=1_500
    )
    status = replace(
        status_of(notices=(COMPLETE, failed)),
        coordinator=CoordinatorStatistics((CheckpointUnderWay(9, "aligned", 2_000, False, (1,)),)),
    )
    complete, given_up, running = checkpoints_of(status, [], 2_700)
    assert (complete.checkpoint, complete.outcome, complete.duration_ms) == (7, "completed", 38.0)
    assert (given_up.outcome, given_up.reason, given_up.duration_ms) == ("failed", "disk full", 500)
    assert (running.outcome, running.duration_ms) == ("running", 700.0)
    assert running.reason == "waits for storage"


def test_no_more_than_the_latest_are_told() -> None:
    many = [msgspec.structs.replace(CHECKPOINT, checkpoint=n, created_ms=n) for n in range(1, 100)]
    status = status_of(notices=tuple(replace(COMPLETE, checkpoint=c) for c in many))
    told = checkpoints_of(status, [], 0)
    assert [c.checkpoint for c in told] == list(range(100 - SHOWN, 100))


def test_the_newest_is_told_by_subtask() -> None:
    older = msgspec.structs.replace(UNALIGNED, checkpoint=6)
    status = status_of(
        notices=(replace(COMPLETE, checkpoint=older), replace(COMPLETE, checkpoint=UNALIGNED))
    )
    first, last = checkpoints_of(status, [], 0)
    assert not first.subtasks
    assert [(s.task, s.async_ms, s.inflight_bytes) for s in last.subtasks] == [
        (0, 5.0, 80),
        (1, 5.0, 80),
    ]


def test_an_aligned_one_would_have_waited_for_all_records_on_the_longest_way() -> None:
    observed = complete_one(UNALIGNED, [task(0, 100.0), task(1, 100.0)])
    assert observed.aligned_estimate_ms == 4_000.0


def test_nothing_is_estimated_without_a_rate() -> None:
    assert complete_one(UNALIGNED, [task(0, 100.0), task(1, 0.0)]).aligned_estimate_ms is None
