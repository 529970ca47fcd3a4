"""A pending checkpoint: when it is complete, and what others see of it."""

from __future__ import annotations

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator.coordinator_events import FailedCheckpoint
from headrace.engine.coordinator.pending import CheckpointUnderWay, PendingCheckpoint
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord


def snapshot(task: int, index: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(task, index, False, [], [], [])


def acknowledge(*places: tuple[int, int], transaction: str = "t") -> m.Acknowledge:
    record = TransactionRecord("out", transaction, {})
    return m.Acknowledge(1, 7, [snapshot(*place) for place in places], [record])


def test_a_checkpoint_is_complete_when_every_worker_has_acknowledged() -> None:
    pending = PendingCheckpoint(7, 0, final=False, request=None, mode=CheckpointMode.ALIGNED)
    assert not pending.complete([0, 1])
    pending.acknowledge(1, acknowledge((1, 1), (0, 1), transaction="b"))
    assert not pending.complete([0, 1])
    pending.acknowledge(0, acknowledge((1, 0), (0, 0), transaction="a"))
    assert pending.complete([0, 1])
    assert [(s.task, s.index) for s in pending.subtasks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [t.id for t in pending.transactions] == ["a", "b"]


def test_a_repeated_acknowledgement_must_say_the_same() -> None:
    pending = PendingCheckpoint(7, 0, final=False, request=None, mode=CheckpointMode.ALIGNED)
    pending.acknowledge(0, acknowledge((0, 0)))
    pending.acknowledge(0, acknowledge((0, 0)))
    with pytest.raises(AssertionError, match="worker 0 acknowledged 7 twice, differently"):
        pending.acknowledge(0, acknowledge((0, 1)))


def test_others_see_which_workers_it_waits_for() -> None:
    created_ns = 5_000_000
    pending = PendingCheckpoint(
        7, created_ns, final=False, request=None, mode=CheckpointMode.ALIGNED
    )
    pending.acknowledge(1, acknowledge((0, 1)))
    assert pending.seen([0, 1, 2]) == CheckpointUnderWay(7, "aligned", 5, False, missing=(0, 2))


def test_one_that_was_given_up_keeps_its_reason() -> None:
    pending = PendingCheckpoint(7, 0, final=False, request=None, mode=CheckpointMode.UNALIGNED)
    failed = FailedCheckpoint(7, "unaligned", 0, False, "disk full")
    assert pending.failed("disk full") == failed
