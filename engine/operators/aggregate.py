"""The keyed aggregate: columns of running values, one slot per key, a batch at a time.

No Python runs per record. A batch becomes slots (`engine.state.keys`), and each aggregation
scatters its column into the slots. The operator emits one row per key of the batch, or all keys
when the input ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from ..contract.operators import (
    OperatorContext,
    RestoredState,
    StateBackend,
    StateLayout,
)
from ..state.backend import RowTable
from ..state.keys import KeySlots
from ..state.slots import Slots
from ..state.tables import refuse_unknown, restored_batches
from .aggregates import Aggregates
from .aggregations import Aggregation, aggregate_schema
from .backends import KeyedOperator, keyed_backend

#: "changes": after each piece of work the new values of its keys; "final": all keys, once, at the
#: end of input.
Emit = Literal["changes", "final"]

# Format, never change.
STATE_NAME = "aggregate"


class AggregateRows:
    """Keys at hand with their aggregates. See `KeptRowsAtHand`."""

    def __init__(
        self,
        keys: Sequence[str],
        aggregations: Mapping[str, Aggregation],
        schema_in: pa.Schema,
        operator: str,
    ) -> None:
        self._key_names = keys
        self._aggregations = aggregations
        self._schema_in = schema_in
        self._operator = operator
        self._begin()
        self.fields = self._keys.fields
        schema = pa.schema([*self.fields, *self.aggregates.fields])
        self.layout = StateLayout(STATE_NAME, len(self.fields), schema)
        self.grouped = len(self.fields)

    def _begin(self) -> None:
        self._keys = KeySlots(self._schema_in, self._key_names)
        self.aggregates = Aggregates(self._aggregations, self._schema_in, self._operator)
        #: For `last_rows`; its content between calls is arbitrary.
        self._scratch = np.zeros(0, np.int32)

    @property
    def count(self) -> int:
        """See `RowsAtHand`."""
        return self._keys.count

    def lookup(self, batch: pa.RecordBatch) -> Slots:
        """Return the slot of each row's key; new keys get a slot."""
        slots = self._keys.lookup(batch)
        self.aggregates.grow(self._keys.count)
        return slots

    def last_rows(self, slots: Slots) -> Slots:
        """Find the last row of each slot, without sorting.

        Of several writes to one place the last stays.
        """
        if len(self._scratch) < self.count:
            self._scratch = np.zeros(2 * self.count, np.int32)
        rows = np.arange(len(slots), dtype=np.int32)
        self._scratch[slots] = rows
        last: Slots = (self._scratch.take(slots, mode="clip") == rows).nonzero()[0]
        return last

    def forget(self) -> None:
        """See `RowsAtHand`."""
        self._begin()

    @property
    def size_bytes(self) -> int:
        """See `KeptRowsAtHand`."""
        return self._keys.size_bytes + self.aggregates.size_bytes + self._scratch.nbytes

    def keys(self) -> list[pa.Array]:
        """See `RowsAtHand`."""
        return self._keys.columns()

    def names(self, slots: Slots) -> list[pa.Array]:
        """See `RowsAtHand`."""
        return self._keys.take(slots)

    def values(self, slots: Slots) -> list[pa.Array]:
        """See `RowsAtHand`."""
        return self.aggregates.working(slots)

    def number(self, rows: pa.RecordBatch) -> Slots:
        """See `RowsAtHand`."""
        return self.lookup(rows)

    def load(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """See `RowsAtHand`."""
        self.aggregates.load(slots, rows.columns[self.grouped :])
        self._keys.commit()

    def stage(self, slots: Slots) -> None:
        """See `RowsAtHand`."""
        self.aggregates.stage(slots)

    def publish(self) -> None:
        """See `RowsAtHand`."""
        self.aggregates.commit()
        self._keys.commit()

    def freeze(self) -> Callable[[], pa.RecordBatch]:
        """See `RowsAtHand`. The keys need no copy."""
        keys, aggregates = self._keys.freeze(), self.aggregates.freeze(self._keys.committed)
        schema = self.layout.schema
        return lambda: pa.RecordBatch.from_arrays([*keys(), *aggregates()], schema=schema)


class AggregateOperator(KeyedOperator):
    """Aggregates by key. The state is one table: key columns, then the columns of each aggregation.

    Raises: UserError for an aggregation that its column does not allow.
    """

    def __init__(
        self,
        keys: Sequence[str],
        aggregations: Mapping[str, Aggregation],
        schema_in: pa.Schema,
        emit: Emit = "changes",
        *,
        operator: str = STATE_NAME,
        backend: StateBackend | None = None,
    ) -> None:
        self._schema = aggregate_schema(keys, aggregations, schema_in)
        self._at_hand = AggregateRows(keys, aggregations, schema_in, operator)
        self._emit = emit
        self._operator = operator
        self._stated = backend

    def open(self, context: OperatorContext) -> None:
        """Make the backend."""
        self._backend = keyed_backend(self._stated, context)
        self._rows: RowTable = self._backend.rows(self._at_hand)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        self._batches(states)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the keys of this subtask.

        Raises: UserError when the checkpoint's aggregate has other columns.
        """
        for batch in self._batches(states):
            self._rows.load(batch)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in a batch; in "changes" mode emit its keys, in the order of their last records.

        Raises: UserCodeError when a sum of integers leaves the range of int64.
        """
        self._opened().begin()
        slots = self._at_hand.lookup(batch)
        self._rows.recall()
        self._at_hand.aggregates.add(slots, batch.column)
        if self._emit == "final":
            self._rows.keep(slots)
            return []
        rows = self._at_hand.last_rows(slots)
        keys = [_plain(batch.column(field.name)) for field in self._at_hand.fields]
        if len(rows) == len(slots):
            changed = slots
        else:
            changed, taken = slots.take(rows), pa.array(rows)
            keys = [key.take(taken) for key in keys]
        self._rows.keep(changed)
        return [self._output(keys, changed)]

    @property
    def loop_fault(self) -> str | None:
        """See `JudgesLoops`."""
        return 'emits at the end of input (emit="final")' if self._emit == "final" else None

    def finish(self) -> Iterator[pa.RecordBatch]:
        """In "final" mode, emit every key."""
        if self._emit == "final":
            for slots in self._rows.scan():
                yield self._output(self._at_hand.names(slots), slots)

    def _batches(self, states: Sequence[RestoredState]) -> list[pa.RecordBatch]:
        refuse_unknown(states, [STATE_NAME], self._operator)
        schema = self._at_hand.layout.schema
        return restored_batches(states, STATE_NAME, schema, self._operator)

    def _output(self, keys: list[pa.Array], slots: Slots) -> pa.RecordBatch:
        results = self._at_hand.aggregates.results(slots)
        return pa.RecordBatch.from_arrays([*keys, *results], schema=self._schema)


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
