"""Notices of records that `on_error="skip"` has dropped: few, however many the records.

A task's first dropped record is told, and then each time its failed records are ten times as many.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.messages import SubtaskNumbers

_GROWTH = 10


class Dropped:
    """What has been told of each task."""

    def __init__(self) -> None:
        #: {task: number of failed records at which it is told next}.
        self._next: dict[int, int] = {}

    def notices(self, numbers: Iterable[SubtaskNumbers]) -> list[str]:
        """Return new notices.

        Args:
            numbers: of all subtasks of the attempt.
        """
        counts: dict[int, int] = {}
        stories: dict[int, str] = {}
        for of_subtask in numbers:
            if of_subtask.dropped:
                task = of_subtask.task
                counts[task] = counts.get(task, 0) + of_subtask.rows_failed
                stories[task] = of_subtask.dropped
        return [self._told(task, count, stories[task]) for task, count in self._due(counts)]

    def _due(self, counts: dict[int, int]) -> list[tuple[int, int]]:
        return [(task, n) for task, n in counts.items() if n >= self._next.get(task, 1)]

    def _told(self, task: int, count: int, story: str) -> str:
        self._next[task] = count * _GROWTH
        records = "1 record has" if count == 1 else f"{count} records have"
        return f'{records} failed and been dropped (on_error="skip"), the last in {story}'
