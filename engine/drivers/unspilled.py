"""Notices of records that stay in memory because local disk does not take them."""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.messages import SubtaskNumbers


class Unspilled:
    """What has been told: once for each task, until its disk takes records again."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def notices(self, numbers: Iterable[SubtaskNumbers]) -> list[str]:
        """Return new notices.

        Args:
            numbers: of all subtasks of the attempt.
        """
        troubled = {n.task: n.unspilled for n in numbers if n.unspilled}
        new = [text for task, text in troubled.items() if task not in self._told]
        self._told = set(troubled)
        return new
