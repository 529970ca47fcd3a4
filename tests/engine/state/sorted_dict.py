"""A third backend of keyed state, for tests: dictionaries of rows, with the writes of the call
aside.

It keeps nothing at hand between calls, and looks at every row for every question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows
from headrace.engine.contract.operators import (
    DatabaseSnapshot,
    RestoredDatabase,
    RestoredState,
    StateKind,
    StateSnapshot,
)
from headrace.engine.state.arrays import Mask
from headrace.engine.state.backend import ABSENT, DueRowsAtHand, Expired, RowsAtHand
from headrace.engine.state.runs import Rows, Run, Times, record_schema, sorted_run
from headrace.engine.state.slots import Slots
from headrace.engine.state.tables import keyed_table, table_of_items
from headrace.engine.state.types import Cell, Key

Name = TypeVar("Name")
Value = TypeVar("Value")


class Store(Generic[Name, Value]):
    """Committed entries, and the writes of the call; None deletes."""

    def __init__(self) -> None:
        self.committed: dict[Name, Value] = {}
        self.written: dict[Name, Value | None] = {}

    def all(self) -> dict[Name, Value]:
        merged = {**self.committed, **self.written}
        return {name: value for name, value in merged.items() if value is not None}

    def commit(self) -> None:
        self.committed, self.written = self.all(), {}


class SortedValues:
    """See `ValueTable`."""

    def __init__(self, schema: pa.Schema, max_parallelism: int) -> None:
        self._schema, self._max_parallelism = schema, max_parallelism
        self._values: dict[Key, Cell] = {}

    def get(self, key: Key, default: Cell = None, /) -> Cell:
        return self._values.get(key, default)

    def merge(self, written: dict[Key, Cell]) -> None:
        merged = {**self._values, **written}
        self._values = {key: value for key, value in merged.items() if value is not ABSENT}

    def load(self, items: Iterable[tuple[Key, Cell]]) -> None:
        self.merge(dict(items))

    def some(self, count: int) -> tuple[list[tuple[Key, Cell]], bool]:
        return list(self._values.items()), True

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def freeze(self) -> Callable[[], pa.Table]:
        items = self._values.items()
        return lambda: table_of_items(items, self._schema, self._max_parallelism)


class SortedRows:
    """See `RowTable`. A row is a batch of one, its name the text of the columns that name it."""

    def __init__(self, at_hand: RowsAtHand, max_parallelism: int) -> None:
        self.at_hand, self._max_parallelism = at_hand, max_parallelism
        self.layout = at_hand.layout
        self.store: Store[str, pa.RecordBatch] = Store()
        #: By slot, the name of the row that was read.
        self._read: dict[int, str] = {}

    def begin(self) -> None:
        self.at_hand.forget()
        self._read = {}

    def recall(self) -> None:
        stored = self.store.all()
        names = texts(self.at_hand.names(np.arange(self.at_hand.count)))
        found = {slot: name for slot, name in enumerate(names) if name in stored}
        if found:
            rows = pa.concat_batches([stored[name] for name in found.values()])
            self.at_hand.load(np.array(list(found)), rows)
        self._read = found

    def recall_keys(self) -> None:
        keys = set(texts(self.at_hand.keys()))
        grouped = self.at_hand.grouped
        self._bring([r for r in self.store.all().values() if texts(r.columns[:grouped])[0] in keys])

    def keep(self, changed: Slots) -> None:
        changed = np.unique(changed)
        gone = [self._read[slot] for slot in changed.tolist() if slot in self._read]
        self.store.written |= dict.fromkeys(gone)
        kept = changed[self._live(changed)]
        columns = [*self.at_hand.names(kept), *self.at_hand.values(kept)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)
        self.store.written |= self._named(rows)

    def load(self, rows: pa.RecordBatch) -> None:
        self.store.committed |= self._named(rows)

    def scan(self) -> Iterator[Slots]:
        stored = sorted(self.store.all().items())
        for first in range(0, len(stored), 2):
            self.begin()
            yield self._bring([row for _, row in stored[first : first + 2]])

    def commit(self) -> None:
        self.store.commit()

    def freeze(self) -> Callable[[], pa.Table]:
        rows = pa.concat_batches([self._none(), *self.store.committed.values()])
        names = self.layout.schema.names[: self.at_hand.grouped]
        return lambda: keyed_table(rows, names, self._max_parallelism)

    def _live(self, slots: Slots) -> Mask:
        return np.ones(len(slots), np.bool_)

    def _bring(self, stored: Sequence[pa.RecordBatch]) -> Slots:
        rows = pa.concat_batches([self._none(), *stored])
        slots = self.at_hand.number(rows)
        self.at_hand.load(slots, rows)
        self._read = dict(zip(slots.tolist(), self._named(rows), strict=True))
        return slots

    def _named(self, rows: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        names = texts(rows.columns[: self.layout.keys])
        return {name: rows.slice(at, 1) for at, name in enumerate(names)}

    def _none(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.layout.schema)


class SortedDueRows(SortedRows):
    """See `DueTable`."""

    def __init__(self, at_hand: DueRowsAtHand, max_parallelism: int) -> None:
        super().__init__(at_hand, max_parallelism)
        self._due = at_hand

    def due(self, until_ns: int, rows_max: int) -> tuple[Slots, bool]:
        rows = [(int(self._due.due_at(r)[0]), n, r) for n, r in self.store.all().items()]
        due = sorted((at, name) for at, name, _ in rows if at <= until_ns)[:rows_max]
        stored = self.store.all()
        slots = self._bring([stored[name] for _, name in due])
        return slots, len(due) == sum(at <= until_ns for at, _, _ in rows)

    def passed(self, slots: Slots) -> None:
        self.keep(slots)

    def _live(self, slots: Slots) -> Mask:
        return self._due.live(slots)


#: A record, its time, and whether it has met one of the other side.
Record = tuple[pa.RecordBatch, int, bool]


class SortedHeld:
    """See `Held`. `numbers` are those of the run's records."""

    def __init__(self, store: Store[int, Record], run: Run, numbers: Sequence[int]) -> None:
        self.run, self._store, self._numbers = run, store, numbers

    def met(self, rows: Rows) -> None:
        stored = self._store.all()
        for number in {self._numbers[row] for row in rows.tolist()}:
            self._store.written[number] = (*stored[number][:2], True)

    def drop(self, rows: Rows) -> None:
        self._store.written |= dict.fromkeys(self._numbers[row] for row in rows.tolist())


class SortedRecords:
    """See `RecordTable`."""

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], kept_ns: int | None, max_parallelism: int
    ) -> None:
        self._schema, self._keys, self._kept_ns = schema, keys, kept_ns
        self._max_parallelism = max_parallelism
        self._store: Store[int, Record] = Store()
        self._next = 0

    def begin(self) -> None: ...

    def add(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        for at in range(batch.num_rows):
            self._store.written[self._next] = batch.slice(at, 1), int(time[at]), bool(matched[at])
            self._next += 1

    def load(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        self.add(batch, time, matched)
        self._store.commit()

    def find(self, hashes: Hashes, low: Times, high: Times) -> Sequence[SortedHeld]:
        stored = self._store.all()
        if not stored:
            return []
        rows, time, matched = self._columns(list(stored.values()))
        found = hash_rows(rows, self._keys)
        order = np.lexsort((time, found))
        run = sorted_run(rows.take(pa.array(order)), time[order], matched[order], found[order])
        return [SortedHeld(self._store, run, np.array(list(stored))[order].tolist())]

    def expired(self, watermark_ns: int, rows_max: int) -> Expired:
        assert self._kept_ns is not None
        stored = self._store.all()
        due = [n for n, (_, time, _) in stored.items() if time + self._kept_ns <= watermark_ns]
        gone = due[:rows_max]
        self._store.written |= dict.fromkeys(gone)
        rows, time, matched = self._columns([stored[number] for number in gone])
        alone = ~matched
        return Expired(rows.filter(pa.array(alone)), time[alone], len(gone), gone == due)

    def commit(self) -> None:
        self._store.commit()

    def freeze(self) -> Callable[[], pa.Table]:
        rows, time, matched = self._columns(list(self._store.committed.values()))
        columns = [*rows.columns, pa.array(time), pa.array(matched)]
        batch = pa.RecordBatch.from_arrays(columns, schema=record_schema(self._schema))
        return lambda: keyed_table(batch, self._keys, self._max_parallelism)

    def _columns(self, records: Sequence[Record]) -> tuple[pa.RecordBatch, Times, Mask]:
        none = pa.RecordBatch.from_pylist([], schema=self._schema)
        rows = pa.concat_batches([none, *(row for row, _, _ in records)])
        times = np.array([time for _, time, _ in records], np.int64)
        return rows, times, np.array([matched for _, _, matched in records], np.bool_)


class SortedBackend:
    """See `KeyedBackend`."""

    def __init__(self, max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        self._tables: dict[str, Any] = {}

    def values(
        self,
        name: str,
        keys: Sequence[pa.Field],
        type_: pa.DataType,
        from_arrow: Callable[[Cell], Cell],
    ) -> SortedValues:
        schema = pa.schema([*keys, pa.field(name, type_)])
        table = self._tables[name] = SortedValues(schema, self._max_parallelism)
        return table

    def rows(self, at_hand: RowsAtHand) -> SortedRows:
        table = self._tables[at_hand.layout.name] = SortedRows(at_hand, self._max_parallelism)
        return table

    def due_rows(self, at_hand: DueRowsAtHand) -> SortedDueRows:
        table = self._tables[at_hand.layout.name] = SortedDueRows(at_hand, self._max_parallelism)
        return table

    def records(
        self,
        name: str,
        schema: pa.Schema,
        keys: Sequence[str],
        kept_ns: int | None,
        *,
        unmatched: bool,
    ) -> SortedRecords:
        table = self._tables[name] = SortedRecords(schema, keys, kept_ns, self._max_parallelism)
        return table

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        return False

    def restore_own(self, states: Iterable[RestoredState]) -> None: ...

    def begin(self) -> None:
        for table in self._tables.values():
            table.begin()

    def prefetch(self, keys: Iterable[Key]) -> None: ...

    def commit(self) -> None:
        for table in self._tables.values():
            table.commit()

    def snapshot(self) -> list[StateSnapshot]:
        frozen = {name: table.freeze() for name, table in self._tables.items()}
        return [StateSnapshot(name, StateKind.KEYED, table) for name, table in frozen.items()]

    def freeze_database(self) -> DatabaseSnapshot | None:
        return None

    def close(self) -> None: ...


def texts(columns: Sequence[pa.Array]) -> list[str]:
    """Tell rows apart by their text."""
    return [repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
