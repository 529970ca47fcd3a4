"""Tables of records in RocksDB: a row for each record, and an index of the records' expiry times.

Rows are in the order of the hash of their key, then of time, so the candidates for a batch are
ranges, one for each distinct key of the batch. A read turns the ranges into a `Run`, as in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows
from headrace.channels.keygroups import KeyGroups, groups_of_hashes

from ...contract.operators import RestoredState, StateKind, StateLayout, StateSnapshot
from ..arrays import Mask
from ..backend import ADDED, DUE_SUFFIX, SEQUENCE_STATE, Expired
from ..runs import Rows, Run, Times, record_schema, sorted_run
from ..tables import KEY_GROUP
from .codecs import KeyCodec
from .database import RocksDatabase
from .due import DueIndex, biased
from .files import Entry
from .rows import Pair, RocksRows
from .values import value_codec

# Format, never change.
HASH = pa.field(ADDED[0], pa.uint64(), nullable=False)
AT = pa.field(ADDED[1], pa.uint64(), nullable=False)
NUMBER = pa.field(ADDED[2], pa.int64(), nullable=False)
_SEQUENCE_SCHEMA = pa.schema([KEY_GROUP, pa.field("next", pa.int64(), nullable=False)])

_WORD_BYTES = 9


class Numbers:
    """Numbers of records, so that equal records are different rows.

    Attributes:
        next: the next record's number, for the running work.
    """

    def __init__(self, groups: range) -> None:
        self._groups = groups
        self.next = self._committed = 0

    def commit(self) -> None:
        """Publish the next number to snapshots."""
        self._committed = self.next

    def restore(self, states: Iterable[RestoredState]) -> None:
        """Go on above the restored numbers."""
        for state in states:
            if state.name == SEQUENCE_STATE and state.table.num_rows:
                self.next = max(self.next, int(state.table["next"].to_numpy().max()))
        self._committed = self.next

    def snapshot(self) -> StateSnapshot:
        """Freeze the committed number of the next record."""
        return StateSnapshot(SEQUENCE_STATE, StateKind.KEYED, self._table(self._committed))

    def _table(self, number: int) -> Callable[[], pa.Table]:
        groups = self._groups

        def table() -> pa.Table:
            owned = np.arange(groups.start, groups.stop, dtype=np.uint16)
            numbers = np.full(len(owned), number, np.int64)
            return pa.table([pa.array(owned), pa.array(numbers)], schema=_SEQUENCE_SCHEMA)

        return table


class RocksHeld:
    """See `Held`. `keys` are the stored keys of the run's records."""

    def __init__(self, table: RocksRecords, run: Run, keys: Sequence[bytes]) -> None:
        self._table = table
        self._keys = keys
        self.run = run

    def met(self, rows: Rows) -> None:
        """See `Held`."""
        rows = np.unique(rows)
        rows = rows[~self.run.matched[rows]]
        if len(rows):
            self._table.mark([self._keys[row] for row in rows.tolist()], self.run, rows)

    def drop(self, rows: Rows) -> None:
        """See `Held`."""
        self._table.drop([self._keys[row] for row in rows.tolist()])


class RocksRecords:
    """See `RecordTable`. Keys are hash, time and number; values are all columns.

    Attributes:
        spaces: the states in the database.
    """

    def __init__(
        self,
        database: RocksDatabase,
        name: str,
        schema: pa.Schema,
        keys: Sequence[str],
        kept_ns: int | None,
        numbers: Numbers,
        max_parallelism: int,
    ) -> None:
        self._schema = schema
        self._key_names = keys
        self._numbers = numbers
        self._max_parallelism = max_parallelism
        values = list(record_schema(schema))
        key = [HASH, AT, NUMBER]
        self._rows = RocksRows(database, StateLayout(name, len(key), pa.schema([*key, *values])))
        self._keys = KeyCodec(name, key, max_parallelism)
        self._values = value_codec(values)
        self.spaces = [self._rows]
        self._kept_ns = kept_ns or 0
        self._due: DueIndex | None = None
        if kept_ns is not None:
            due, groups = name + DUE_SUFFIX, database.groups
            self._due = DueIndex(database, due, [HASH, NUMBER], groups, max_parallelism)
            self.spaces.append(self._due.rows)

    def begin(self) -> None:
        """Drop the records at hand."""

    @property
    def is_written(self) -> bool:
        """Whether this call has written."""
        return any(space.is_written for space in self.spaces)

    def stage(self) -> None:
        """Hand the writes to the database, just before its commit. Owner thread."""
        self._numbers.commit()
        for space in self.spaces:
            space.stage()

    def add(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """See `RecordTable`."""
        entries, due = self._stored(batch, time, matched)
        self._rows.put(entries)
        if self._due is not None:
            self._due.replace((), due)

    def load(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """See `RecordTable`."""
        entries, due = self._stored(batch, time, matched)
        self._rows.load(entries)
        if self._due is not None:
            self._due.load(due)
        self._numbers.commit()

    def find(self, hashes: Hashes, low: Times, high: Times) -> Sequence[RocksHeld]:
        """See `RecordTable`."""
        distinct, of = np.unique(hashes, return_inverse=True)
        first = np.full(len(distinct), np.iinfo(np.int64).max)
        last = np.full(len(distinct), np.iinfo(np.int64).min)
        np.minimum.at(first, of, low)
        np.maximum.at(last, of, high)
        numbers = pa.array(np.zeros(len(distinct), np.int64))
        lower = self._stored_keys(distinct, first, numbers)
        upper = self._stored_keys(distinct, last, numbers)
        cursor = self._rows.cursor()
        pairs: list[Pair] = []
        for begin, end in sorted(zip(lower, upper, strict=True)):
            begin, end = begin[:-_WORD_BYTES], end[:-_WORD_BYTES] + b"\2"
            pairs += self._rows.range(cursor, begin, end)
        return [self._held(pairs)] if pairs else []

    def mark(self, keys: Sequence[bytes], run: Run, rows: Rows) -> None:
        """Mark the records of these stored keys as matched by the other side."""
        met = run.rows.take(pa.array(rows))
        values = self._encoded(met, run.time[rows], np.ones(len(rows), np.bool_))
        self._rows.put(zip(keys, values, strict=True))

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget records by their stored keys."""
        gone: list[Entry] = [(key, None) for key in keys]
        self._rows.put(gone)

    def expired(self, watermark_ns: int, rows_max: int) -> Expired:
        """See `RecordTable`. Every dropped record counts."""
        assert self._due is not None, "these records do not expire"
        due, done = self._due.due(watermark_ns, rows_max)
        times, (hashes, numbers), groups = self._due.columns(due)
        keys = self._stored_keys(hashes.to_numpy(), times - self._kept_ns, numbers, groups)
        values = [value for value in self._rows.get(keys) if value is not None]
        assert len(values) == len(keys), "a record that expires does not exist"
        rows, time, matched = self._decoded(values)
        self.drop(keys)
        self._due.replace(due, ())
        return Expired(rows.filter(pa.array(~matched)), time[~matched], len(keys), done)

    def _stored(
        self, batch: pa.RecordBatch, time: Times, matched: Mask
    ) -> tuple[list[Pair], list[bytes]]:
        """Number records. Returns the entries of the records and of the index."""
        first = self._numbers.next
        self._numbers.next += batch.num_rows
        hashes = hash_rows(batch, self._key_names)
        groups = groups_of_hashes(hashes, self._max_parallelism)
        numbers = pa.array(np.arange(first, first + batch.num_rows))
        keys = self._stored_keys(hashes, time, numbers, groups)
        entries = list(zip(keys, self._encoded(batch, time, matched), strict=True))
        if self._due is None:
            return entries, []
        return entries, self._due.keys(time + self._kept_ns, [pa.array(hashes), numbers], groups)

    def _stored_keys(
        self,
        hashes: Hashes,
        time: Times,
        numbers: pa.Array,
        groups: KeyGroups | None = None,
    ) -> list[bytes]:
        if groups is None:
            groups = groups_of_hashes(hashes, self._max_parallelism)
        columns = [pa.array(hashes), pa.array(biased(time)), numbers]
        return self._keys.encode(columns, groups)

    def _encoded(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> list[bytes]:
        return self._values.encode([*batch.columns, pa.array(time), pa.array(matched)])

    def _decoded(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Times, Mask]:
        *columns, time, matched = self._values.decode(values)
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return rows, time.to_numpy(), matched.to_numpy(zero_copy_only=False)

    def _held(self, pairs: Sequence[Pair]) -> RocksHeld:
        keys = [key for key, _ in pairs]
        rows, time, matched = self._decoded([value for _, value in pairs])
        hashes: Hashes = self._keys.decode(keys)[0].to_numpy()
        order = np.lexsort((time, hashes))
        run = sorted_run(rows.take(pa.array(order)), time[order], matched[order], hashes[order])
        return RocksHeld(self, run, [keys[at] for at in order])
