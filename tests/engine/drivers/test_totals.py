"""Counts that go on from attempt to attempt."""

from __future__ import annotations

from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.drivers.totals import Totals, added


def test_counts_of_attempts_add_up_by_subtask() -> None:
    first = SubtaskNumbers(0, 1, 10, 20, 30, 40, 50, 0, 0, rows_late=1, rows_failed=2)
    second = SubtaskNumbers(0, 1, 1, 2, 3, 4, 5, 0, 0)
    other = SubtaskNumbers(1, 0, 7, 0, 0, 0, 0, 0, 0)
    totals = added(added({}, [first]), [second, other])
    assert totals[0, 1] == Totals(11, 22, 1, 2, 33, 44, 55)
    assert totals[1, 0].rows_in == 7
