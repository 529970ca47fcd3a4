"""The first record of each key: an aggregate that counts, and emits records in place of counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from ..contract.operators import StateBackend
from .aggregate import AggregateOperator
from .aggregations import count

#: The column of state that counts. Format, never change.
_COUNT = "__count"


class DistinctOperator(AggregateOperator):
    """Emits a record when its key comes for the first time; writes no state for others."""

    def __init__(
        self,
        keys: Sequence[str],
        schema_in: pa.Schema,
        *,
        operator: str = "distinct",
        backend: StateBackend | None = None,
    ) -> None:
        super().__init__(keys, {_COUNT: count()}, schema_in, operator=operator, backend=backend)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Emit the first record of each new key, in the order of the batch."""
        self._opened().begin()
        slots = self._at_hand.lookup(batch)
        self._rows.recall()
        (counts,) = self._at_hand.aggregates.results(slots)
        unseen = np.flatnonzero(counts.to_numpy() == 0)
        _, first = np.unique(slots[unseen], return_index=True)
        rows = unseen[np.sort(first)]
        if not len(rows):
            return []
        new = slots[rows]
        self._at_hand.aggregates.add(new, batch.column)
        self._rows.keep(new)
        return [batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))]
