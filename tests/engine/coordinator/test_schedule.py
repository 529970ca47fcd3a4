"""The schedule of periodic checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.engine.coordinator.rules import CheckpointRules
from headrace.engine.coordinator.schedule import Schedule

ONE = CheckpointRules(
    interval_ns=100,
    min_pause_ns=0,
    timeout_ns=1_000,
    tolerable_failures=1,
    retain=1,
    concurrent=1,
)


def test_nothing_is_due_before_an_attempt_starts_or_after_it_ended() -> None:
    schedule = Schedule(ONE)
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
    schedule = Schedule(ONE)
    schedule.attempt_started(50)
    schedule.triggered(triggered_at_ns)
    assert schedule.due_ns == next_ns


def test_a_pause_follows_the_end_of_each_checkpoint() -> None:
    schedule = Schedule(replace(ONE, min_pause_ns=80))
    schedule.attempt_started(0)
    schedule.triggered(100)
    schedule.ended(110, complete=True)
    assert schedule.due_ns == 200, "the interval is longer"
    schedule.triggered(200)
    schedule.ended(290, complete=False)
    assert schedule.due_ns == 370


def test_without_an_interval_nothing_is_ever_due() -> None:
    schedule = Schedule(replace(ONE, interval_ns=None))
    schedule.attempt_started(0)
    schedule.triggered(10)
    schedule.ended(20, complete=True)
    assert schedule.due_ns is None


def test_failures_in_a_row_are_tolerated_up_to_the_limit() -> None:
    schedule = Schedule(ONE)
    schedule.attempt_started(0)
    for complete, broken in [(False, False), (True, False), (False, False), (False, True)]:
        schedule.ended(0, complete=complete)
        assert schedule.is_broken is broken
    schedule.attempt_started(0)
    schedule.ended(0, complete=False)
    assert not schedule.is_broken, "a new attempt begins anew"
