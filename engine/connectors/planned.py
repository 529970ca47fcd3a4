"""The planner of a split source, as a source reader: its records are splits.

Each split leaves in a batch of its own, so that an edge deals splits out one by one. State: the
planner's place.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..contract.connectors import SplitPlanner, SplitSource
from ..contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    StateKind,
    StateSnapshot,
)
from ..operators.splits import SPLITS, split_rows

#: Name of the state. Format, never change.
_PLACE = "place"


class PlannerReader:
    """Polls the planner; there is one for all readers."""

    def __init__(self, source: SplitSource) -> None:
        self._source = source
        self._planner: SplitPlanner | None = None
        self._place = ""
        self._committed = ""

    def open(self, context: OperatorContext) -> None:
        """Make and open the planner."""
        assert context.parallelism == 1, "one place plans"
        self._planner = self._source.planner()
        self._planner.open(context)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on at the stored place."""
        for state in states:
            (self._place,) = state.table[_PLACE].to_pylist()
        self._committed = self._place

    def poll(self, rows_max: int) -> Polled:
        """Return the next splits. Raises: ValueError for a split that cannot travel."""
        assert self._planner is not None, "opened"
        planned = self._planner.plan(self._place)
        self._place = planned.place
        batches = [
            pa.RecordBatch.from_pylist([row], schema=SPLITS) for row in split_rows(planned.splits)
        ]
        return Polled(batches, planned.status, planned.wait_ns)

    def commit(self) -> None:
        """Publish the place."""
        self._committed = self._place

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the place."""
        place = self._committed
        table = pa.table({_PLACE: pa.array([place], pa.string())})
        return (StateSnapshot(_PLACE, StateKind.LIST, lambda: table),)

    def close(self) -> None:
        """Close the planner."""
        if self._planner is not None:
            self._planner.close()
