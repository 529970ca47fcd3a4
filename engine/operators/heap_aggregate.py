"""The keyed aggregate on the heap: columns of running values, one slot per key, a batch at a time.

No Python runs per record. A batch becomes slots (`engine.state.keys`), each aggregation scatters its column into those
slots, and either nothing is emitted until the input ends, or one row per key that the batch touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from ..contract.errors import UserCodeError
from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateKind,
    StateSnapshot,
)
from ..state.arrays import Values
from ..state.keys import KeySlots
from ..state.slots import Slots
from ..state.tables import keyed_table, refuse_unknown, restored_batches
from .accumulators import Accumulator, accumulator
from .aggregations import Aggregation, aggregate_schema

#: "changes": after each piece of work the new values of every key in it; "final": all keys, once, at the end of input.
Emit = Literal["changes", "final"]

# Format, never change.
STATE_NAME = "aggregate"


class HeapAggregate:
    """Aggregates by key, in memory.

    Its state is one table: key columns, then what each aggregation keeps.
    """

    def __init__(
        self,
        keys: Sequence[str],
        aggregations: Mapping[str, Aggregation],
        schema_in: pa.Schema,
        emit: Emit = "changes",
        *,
        operator: str = STATE_NAME,
    ) -> None:
        self._schema = aggregate_schema(keys, aggregations, schema_in)
        self._schema_in = schema_in
        self._keys = KeySlots(schema_in, keys)
        self._sources = [aggregation.column for aggregation in aggregations.values()]
        self._accumulators: list[Accumulator] = [
            accumulator(name, aggregation, schema_in) for name, aggregation in aggregations.items()
        ]
        state_fields = [f for a in self._accumulators for f in a.fields]
        self._state_schema = pa.schema([*self._keys.fields, *state_fields])
        self._emit = emit
        self._operator = operator
        self._max_parallelism = 0
        #: For `_last_rows`; what it holds between calls means nothing.
        self._scratch = np.zeros(0, np.int32)

    def open(self, context: OperatorContext) -> None:
        """Note where this instance runs."""
        self._max_parallelism = context.max_parallelism

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Their tables will do."""
        return False

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, [STATE_NAME], self._operator)
        restored_batches(states, STATE_NAME, self._state_schema, self._operator)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the keys that this subtask owns now.

        Raises: UserError when the checkpoint's aggregate has other columns.
        """
        refuse_unknown(states, [STATE_NAME], self._operator)
        for batch in restored_batches(states, STATE_NAME, self._state_schema, self._operator):
            slots = self._lookup(batch)
            for accumulated in self._accumulators:
                names = [field.name for field in accumulated.fields]
                accumulated.load(slots, [batch.column(name) for name in names])
        self._keys.commit()

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in a batch; in "changes" mode emit the keys it touched, in the order of their last records in it.

        Raises: UserCodeError when a sum of integers leaves the range of int64.
        """
        slots = self._lookup(batch)
        for source, accumulated in zip(self._sources, self._accumulators, strict=True):
            column = None if source is None else batch.column(source)
            try:
                accumulated.add(slots, column)
            except OverflowError as error:
                name = accumulated.fields[0].name
                raise UserCodeError(
                    self._operator,
                    f"aggregation {name!r} of column {source!r}: {error}; cast the column to float64 before",
                ) from error
        if self._emit == "final":
            self._stage(slots)
            return []
        rows = self._last_rows(slots)
        staged = self._stage(slots.take(rows))
        taken = pa.array(rows)
        keys = [_plain(batch.column(field.name)).take(taken) for field in self._keys.fields]
        return [self._output(keys, staged)]

    def finish(self) -> Iterable[pa.RecordBatch]:
        """In "final" mode, emit every key."""
        count = self._keys.count
        if self._emit != "final" or not count:
            return []
        # Copies: the emitted batch must not change if this state is ever written again.
        state = [[c.working[:count].copy() for c in a.columns] for a in self._accumulators]
        return [self._output(self._keys.columns(), state)]

    def commit(self) -> None:
        """Publish the touched slots' values, and the new keys."""
        for accumulated in self._accumulators:
            for column in accumulated.columns:
                column.commit()
        self._keys.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Copy the committed values; keys need no copy."""
        count = self._keys.committed
        keys = self._keys.freeze()
        frozen = [[column.freeze(count) for column in a.columns] for a in self._accumulators]
        return [StateSnapshot(STATE_NAME, StateKind.KEYED, self._table(keys, frozen))]

    def freeze_database(self) -> DatabaseSnapshot | None:
        """There is none."""
        return None

    def close(self) -> None:
        """Nothing is held outside memory."""

    def _lookup(self, batch: pa.RecordBatch) -> Slots:
        slots = self._keys.lookup(batch)
        for accumulated in self._accumulators:
            for column in accumulated.columns:
                column.grow(self._keys.count)
        return slots

    def _last_rows(self, slots: Slots) -> Slots:
        """Find the last row of each distinct slot, without sorting: of several writes to one place the last one stays."""
        if len(self._scratch) < self._keys.count:
            self._scratch = np.zeros(2 * self._keys.count, np.int32)
        rows = np.arange(len(slots), dtype=np.int32)
        self._scratch[slots] = rows
        return np.flatnonzero(self._scratch.take(slots, mode="clip") == rows)

    def _stage(self, slots: Slots) -> list[list[Values]]:
        return [[column.stage(slots) for column in a.columns] for a in self._accumulators]

    def _output(self, keys: list[pa.Array], state: Sequence[Sequence[Values]]) -> pa.RecordBatch:
        results = [a.result(s) for a, s in zip(self._accumulators, state, strict=True)]
        return pa.RecordBatch.from_arrays([*keys, *results], schema=self._schema)

    def _table(
        self, keys: Callable[[], list[pa.Array]], frozen: Sequence[Sequence[Values]]
    ) -> Callable[[], pa.Table]:
        accumulators, schema = self._accumulators, self._state_schema
        names = [field.name for field in self._keys.fields]
        max_parallelism = self._max_parallelism

        def table() -> pa.Table:
            stored = [
                array
                for a, state in zip(accumulators, frozen, strict=True)
                for array in a.store(state)
            ]
            batch = pa.RecordBatch.from_arrays([*keys(), *stored], schema=schema)
            return keyed_table(batch, names, max_parallelism)

        return table


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
