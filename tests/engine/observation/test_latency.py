"""The time from source to sink, by the records that wait."""

from __future__ import annotations

from headrace.engine.observation.latency import Waiting, latency_ms
from tests.engine.cli.looks import PLAN


def test_a_record_waits_for_those_before_it() -> None:
    assert latency_ms(PLAN, {(0, 0): Waiting(500, 1_000)}) == (500.0, 500.0)


def test_some_records_meet_the_slowest_subtask() -> None:
    waiting = {(0, 0): Waiting(100, 900), (0, 1): Waiting(400, 100)}
    assert latency_ms(PLAN, waiting) == (500.0, 4_000.0)


def test_nothing_is_told_of_a_job_in_which_nothing_moves() -> None:
    assert latency_ms(PLAN, {}) == (None, None)
    assert latency_ms(PLAN, {(0, 0): Waiting(3, 0)}) == (None, None)
