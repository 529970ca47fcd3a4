"""The keyed aggregate on RocksDB: a batch's distinct keys are read at once, aggregated as on the heap, and written back.

Each key of a batch is touched once, however many records it has. Keys are read sorted, which the database answers twice as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateLayout,
    StateSnapshot,
)
from ..state.arrays import Values
from ..state.keys import KeySlots
from ..state.rocks.codecs import KeyCodec
from ..state.rocks.database import RocksDatabase, Writes
from ..state.rocks.files import Entry
from ..state.rocks.values import value_codec
from ..state.slots import Slots
from ..state.tables import refuse_unknown, restored_batches
from .backends import make_database, take_over
from .heap_aggregate import STATE_NAME, HeapAggregate


class RocksAggregate(HeapAggregate):
    """Aggregates by key; what is committed lies in a database. Its one state has the columns of the heap's table."""

    @property
    def layout(self) -> StateLayout:
        """See `Space`."""
        return StateLayout(STATE_NAME, len(self._keys.fields), self._state_schema)

    def open(self, context: OperatorContext) -> None:
        """Name the database, which appears when it is first used."""
        super().open(context)
        fields = list(self._state_schema)
        keys = len(self._keys.fields)
        self._key_codec = KeyCodec(STATE_NAME, fields[:keys], context.max_parallelism)
        self._value_codec = value_codec(fields[keys:])
        self._database: RocksDatabase = make_database(context.backend, context)
        self._database.add(self)
        #: Stored keys of the batch at hand, by slot.
        self._stored: list[bytes] = []
        #: What this call wrote.
        self._written: dict[bytes, bytes] = {}

    def entries(self, writes: Writes) -> Iterable[Entry]:
        """See `Space`."""
        return writes.items()

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeepsDatabase`."""
        return take_over(self._database, databases, {STATE_NAME: self.layout})

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the rows of tables. Raises: UserError when the checkpoint's aggregate has other columns."""
        refuse_unknown(states, [STATE_NAME], self._operator)
        keys = len(self._keys.fields)
        for batch in restored_batches(states, STATE_NAME, self._state_schema, self._operator):
            stored = self._key_codec.encode(batch.columns[:keys])
            values = self._value_codec.encode(batch.columns[keys:])
            self._database.load(zip(stored, values, strict=True))

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """See `HeapAggregate`."""
        if not self._written:
            self._database.settle()
        return super().process(batch, port)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """In "final" mode, emit every key, some thousand at a time, in the order of the database."""
        if self._emit != "final":
            return
        written = dict(self._written)
        for entries in self._database.scan():
            yield self._all([(key, written.pop(key, value)) for key, value in entries])
        if written:
            yield self._all(list(written.items()))

    def commit(self) -> None:
        """Make a layer of what was written."""
        self._database.stage(STATE_NAME, self._written)
        self._database.commit()
        self._written = {}

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Nothing lies on the heap."""
        return []

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze the database."""
        return self._database.snapshot()

    def close(self) -> None:
        """Remove the database."""
        if hasattr(self, "_database"):
            self._database.close()

    def _lookup(self, batch: pa.RecordBatch) -> Slots:
        """Slots of this batch's keys only, in the order of the database, with their values."""
        names = [field.name for field in self._keys.fields]
        self._keys = KeySlots(self._schema_in, names)
        slots = self._keys.lookup(batch)
        columns = self._keys.columns()
        order = self._key_codec.order(columns)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        ordered = pa.array(order)
        self._stored = self._key_codec.encode([column.take(ordered) for column in columns])
        self._load(self._read(self._stored))
        return rank.take(slots)

    def _stage(self, slots: Slots) -> list[list[Values]]:
        """Write the values of all keys of the batch, once."""
        count = self._keys.count
        state = [[c.working[:count] for c in a.columns] for a in self._accumulators]
        arrays = [
            array
            for a, columns in zip(self._accumulators, state, strict=True)
            for array in a.store(columns)
        ]
        values = self._value_codec.encode(arrays)
        self._written.update(zip(self._stored, values, strict=True))
        return [[c.working.take(slots) for c in a.columns] for a in self._accumulators]

    def _read(self, keys: list[bytes]) -> list[bytes | None]:
        """What this call wrote, else what the layers say, else what the database has. `keys` are sorted."""
        newer = [some for some in (self._written, self._database.recent(STATE_NAME)) if some]
        if not newer:
            return self._database.get_many(keys)
        found: list[bytes | None] = list(map(newer[0].get, keys))
        if len(newer) > 1:
            older = map(newer[1].get, keys)
            found = [a if a is not None else b for a, b in zip(found, older, strict=True)]
        missing = [at for at, value in enumerate(found) if value is None]
        read = self._database.get_many([keys[at] for at in missing])
        for at, value in zip(missing, read, strict=True):
            found[at] = value
        return found

    def _load(self, values: Sequence[bytes | None]) -> None:
        """Set the working values of slots 0, 1, ...; None: nothing was aggregated yet."""
        for accumulated in self._accumulators:
            for column in accumulated.columns:
                column.reset(len(values))
        stored = [value for value in values if value is not None]
        if not stored:
            return
        if len(stored) == len(values):
            slots = np.arange(len(values))
        else:
            slots = np.array([at for at, value in enumerate(values) if value is not None], np.int64)
        arrays = self._value_codec.decode(stored)
        for accumulated in self._accumulators:
            count = len(accumulated.fields)
            accumulated.load(slots, arrays[:count])
            arrays = arrays[count:]

    def _all(self, entries: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        """The result of every one of these keys."""
        self._load([value for _, value in entries])
        count = len(entries)
        state = [[c.working[:count].copy() for c in a.columns] for a in self._accumulators]
        return self._output(self._key_codec.decode([key for key, _ in entries]), state)
