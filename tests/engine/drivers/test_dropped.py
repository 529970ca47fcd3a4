"""Dropped records are told: at once, and then few times."""

from __future__ import annotations

from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.drivers.dropped import Dropped


def numbers(
    task: int, failed: int, dropped: str = "operator 'o': no", subtask: int = 0
) -> SubtaskNumbers:
    return SubtaskNumbers(task, subtask, 0, 0, 0, 0, 0, 0, 0, rows_failed=failed, dropped=dropped)


def test_each_task_is_told_first_and_when_its_failures_are_ten_times_as_many() -> None:
    dropped = Dropped()
    told = [len(dropped.notices([numbers(0, failed)])) for failed in (0, 1, 2, 9, 10, 99, 100)]
    assert told == [0, 1, 0, 0, 1, 0, 1]
    assert len(dropped.notices([numbers(1, 5)])) == 1


def test_a_notice_counts_all_subtasks_and_shows_the_last_failure() -> None:
    told = Dropped().notices([numbers(0, 3), numbers(0, 4, "operator 'o': bad", subtask=1)])
    assert told == [
        "7 records have failed and been dropped (on_error=\"skip\"), the last in operator 'o': bad"
    ]


def test_routed_records_are_not_told() -> None:
    assert Dropped().notices([numbers(0, 3, "")]) == []


def test_an_attempt_that_begins_anew_is_not_told_anew() -> None:
    dropped = Dropped()
    dropped.notices([numbers(0, 50)])
    assert dropped.notices([numbers(0, 1)]) == []
