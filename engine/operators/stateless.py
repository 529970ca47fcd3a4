"""The life cycle of an operator that keeps nothing between calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ..contract.operators import OperatorContext, RestoredState, StateSnapshot


class StatelessOperator:
    """Base that answers every call but `process` with nothing."""

    def open(self, context: OperatorContext) -> None:
        """Nothing to do."""

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Nothing is ever given back, because nothing is ever kept."""
        assert not states, f"state {[state.name for state in states]} for an operator without state"

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Nothing is held back."""
        return ()

    def commit(self) -> None:
        """Nothing was written."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Nothing is kept."""
        return ()

    def close(self) -> None:
        """Nothing is held."""
