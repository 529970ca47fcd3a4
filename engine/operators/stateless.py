"""The life cycle of an operator without state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ..contract.operators import OperatorContext, RestoredState, StateSnapshot


class StatelessOperator:
    """Base of operators without state: every call but `process` does nothing."""

    def open(self, context: OperatorContext) -> None:
        """Do nothing."""

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Do nothing: no snapshot has state to restore."""
        assert not states, f"state {[state.name for state in states]} for an operator without state"

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Emit no records: none are held back."""
        return ()

    def commit(self) -> None:
        """Do nothing: there are no writes."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Return no state."""
        return ()

    def close(self) -> None:
        """Do nothing: there are no resources."""
