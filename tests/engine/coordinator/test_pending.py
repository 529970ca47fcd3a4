"""Pending checkpoints and their schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.contract.messages import Acknowledge
from headrace.engine.coordinator.pending import CheckpointRules, PendingCheckpoint, Schedule
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord

RULES = CheckpointRules(
    interval_ns=100,
    min_pause_ns=0,
    timeout_ns=1_000,
    tolerable_failures=1,
    retain=1,
    concurrent=1,
)


def snapshot(task: int, index: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(task, index, False, [], [], [])


def acknowledge(*places: tuple[int, int], transaction: str = "t") -> Acknowledge:
    record = TransactionRecord("out", transaction, {})
    return Acknowledge(1, 7, [snapshot(*place) for place in places], [record])


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


def test_nothing_is_due_before_an_attempt_starts_or_after_it_ended() -> None:
    schedule = Schedule(RULES)
    assert schedule.due_ns is None
    schedule.attempt_started(50)
    assert schedule.due_ns == 150
    schedule.attempt_ended()
    assert schedule.due_ns is None


@pytest.mark.parametrize(
    ("triggered_at_ns", "next_ns"),
    [(150, 250), (170, 250), (249, 250), (250, 350), (900, 1_000)],
)
def test_a_trigger_that_was_a_little_late_does_not_shift_the_next(
    triggered_at_ns: int, next_ns: int
) -> None:
    schedule = Schedule(RULES)
    schedule.attempt_started(50)
    schedule.triggered(triggered_at_ns)
    assert schedule.due_ns == next_ns


def test_a_pause_follows_the_end_of_each_checkpoint() -> None:
    schedule = Schedule(replace(RULES, min_pause_ns=80))
    schedule.attempt_started(0)
    schedule.triggered(100)
    schedule.ended(110, complete=True)
    assert schedule.due_ns == 200, "the interval is longer"
    schedule.triggered(200)
    schedule.ended(290, complete=False)
    assert schedule.due_ns == 370


def test_without_an_interval_nothing_is_ever_due() -> None:
    schedule = Schedule(replace(RULES, interval_ns=None))
    schedule.attempt_started(0)
    schedule.triggered(10)
    schedule.ended(20, complete=True)
    assert schedule.due_ns is None


def test_failures_in_a_row_are_tolerated_up_to_the_limit() -> None:
    schedule = Schedule(RULES)
    schedule.attempt_started(0)
    outcomes = [False, True, False, False]
    assert [schedule.ended(0, complete=c) for c in outcomes] == [False, False, False, True]
    schedule.attempt_started(0)
    assert not schedule.ended(0, complete=False), "a new attempt begins anew"
