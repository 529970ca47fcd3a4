"""Two keyed streams in one processor: a history of both sides, and totals of each side.

Records of both sides enter one list per key, so two sides with different state repeat a place.
Records of a key meet in no certain order, but each place is taken once. At the end of input a timer
tells the count and sum of either side, so a record on the wrong side shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from ...operators.co_process import CoInput, CoProcessOperator, CoProcessor
from ...state.keyed import list_state, map_state
from .connects import TOLD_PATH
from .source import SCHEMA

#: Later than all records: the timer fires at the end of input.
_END_NS: Final = 1 << 50
#: Ids of totals stay below, whatever was summed.
_PRIME: Final = 1_000_000_007
_SIDE: Final = CoInput(("key",), SCHEMA, None)


class Sides(CoProcessor):
    """A list per key, and counts and sums of ids by side."""

    seen = list_state(pa.int64())
    counts = map_state(pa.int64(), pa.int64())
    totals = map_state(pa.int64(), pa.int64())

    def __init__(self, task: int) -> None:
        self._task = task

    def process_left(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Append a record of the first input."""
        yield self._entered(row, 0)

    def process_right(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Append a record of the other inputs."""
        yield self._entered(row, 1)

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        """Tell the totals of both sides; a second firing tells zeros."""
        sides = [(self.counts.pop(side, 0), self.totals.pop(side, 0)) for side in (0, 1)]
        told = {"id": totals_of(*sides), "key": key, "path": TOLD_PATH}
        yield dict.fromkeys(SCHEMA.names, 0) | told

    def _entered(self, row: dict[str, Any], side: int) -> dict[str, Any]:
        self.seen.append(row["id"])
        self.counts[side] = self.counts.get(side, 0) + 1
        self.totals[side] = self.totals.get(side, 0) + row["id"]
        self.timers.set(_END_NS)
        return {**row, "by": self._task, "nth": len(self.seen)}


def totals_of(left: tuple[int, int], right: tuple[int, int]) -> int:
    """The id of a record of totals, of (count, sum of ids) by side."""
    id = 0
    for number in (*left, *right):
        id = (id * 31 + number) % _PRIME
    return id


def co_process(task: int, name: str) -> CoProcessOperator:
    """The keyed operator: the first input is the left side."""
    return CoProcessOperator(Sides(task), _SIDE, _SIDE, 1, SCHEMA, operator=name)
