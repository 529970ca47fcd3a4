"""The first records of a stream. State: how many have passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ..contract.operators import OperatorContext, RestoredState, StateKind, StateSnapshot

_SCHEMA = pa.schema([("passed", pa.int64())])


class LimitOperator:
    """Passes `rows_max` records on and drops all others; of one subtask."""

    def __init__(self, rows_max: int, *, operator: str = "limit") -> None:
        self._rows_max = rows_max
        self._passed = self._committed = 0

    def open(self, context: OperatorContext) -> None:
        """Refuse to be one of several."""
        assert context.parallelism == 1, "a limit counts in one place"

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on counting."""
        for state in states:
            self._passed = self._committed = sum(state.table.column("passed").to_pylist())

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Pass on what is left of the limit."""
        taken = batch.slice(0, self._rows_max - self._passed)
        self._passed += taken.num_rows
        return [taken]

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Emit no records: none are held back."""
        return ()

    def commit(self) -> None:
        """Publish the count."""
        self._committed = self._passed

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the count."""
        passed = self._committed
        table = lambda: pa.table({"passed": [passed]}, schema=_SCHEMA)  # one value
        return (StateSnapshot("limit", StateKind.LIST, table),)

    def close(self) -> None:
        """Do nothing: there are no resources."""
