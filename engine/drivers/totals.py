"""What subtasks did in earlier attempts, so that a counter never goes back.

Workers count from zero in each attempt. The records of an attempt that failed are worked on again
and count again: these are counts of work, not of results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from ..contract.messages import SubtaskNumbers


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of one subtask in several attempts; fields as in `SubtaskNumbers`."""

    rows_in: int = 0
    rows_out: int = 0
    rows_late: int = 0
    rows_failed: int = 0
    busy_ns: int = 0
    backpressured_ns: int = 0
    idle_ns: int = 0

    def plus(self, numbers: SubtaskNumbers) -> Totals:
        """Return the counts with those of one more attempt."""
        return Totals(*(getattr(self, f.name) + getattr(numbers, f.name) for f in fields(self)))


def added(
    before: dict[tuple[int, int], Totals], numbers: Iterable[SubtaskNumbers]
) -> dict[tuple[int, int], Totals]:
    """Return totals by (task, subtask), with the last numbers of an attempt."""
    totals = dict(before)
    for each in numbers:
        place = (each.task, each.subtask)
        totals[place] = totals.get(place, Totals()).plus(each)
    return totals
