"""The records of a join that lie in RocksDB: for each side a row per record, and an index that tells which can meet nothing any more.

Rows are in the order of the hash of their key, then of time, so what a batch may meet are ranges: one for each distinct key in it. They
are read into a `Run` (`join_runs.py`), on which the operator works as it does in memory. So memory holds what one batch meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows
from headrace.channels.keygroups import KeyGroups, groups_of_hashes, key_group_range

from ..state.arrays import Mask
from ..state.backends import make_database, take_over
from ..state.rocks import RocksDatabase
from ..state.rocks_codecs import KeyCodec
from ..state.rocks_due import DueIndex, biased
from ..state.rocks_files import Entry
from ..state.rocks_rows import Pair, RocksRows
from ..state.rocks_values import value_codec
from ..state.tables import KEY_GROUP
from .base import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateKind,
    StateLayout,
    StateSnapshot,
)
from .join_runs import MATCHED, SEQUENCE_STATE, TIME, JoinInput, Rows, Run, sorted_run
from .window_store import DUE_SUFFIX
from .windows import Times

# Format, never change.
HASH = pa.field("__hash", pa.uint64(), nullable=False)
AT = pa.field("__at", pa.uint64(), nullable=False)
NUMBER = pa.field("__number", pa.int64(), nullable=False)
_SEQUENCE_SCHEMA = pa.schema([KEY_GROUP, pa.field("next", pa.int64(), nullable=False)])

_WORD_BYTES = 9


@dataclass(frozen=True, slots=True)
class Held:
    """Records that a batch may meet, and their stored keys."""

    run: Run
    keys: Sequence[bytes]


class RocksJoin:
    """The two sides of one subtask's join.

    Args:
        names: of the two states.
        kept_ns: by side, how long beyond its time a record may meet one of the other.
    """

    def __init__(
        self,
        names: Sequence[str],
        inputs: Sequence[JoinInput],
        kept_ns: Sequence[int],
        backend: StateBackend,
        context: OperatorContext,
    ) -> None:
        self._database = make_database(backend, context)
        self._groups = key_group_range(context.max_parallelism, context.parallelism, context.index)
        self._sides = [
            _Side(self._database, name, given, kept, self._groups, context.max_parallelism)
            for name, given, kept in zip(names, inputs, kept_ns, strict=True)
        ]
        #: Of the next record; and as committed.
        self._number = self._committed = 0

    # --- the subtask's thread -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a batch or a slice: apply what earlier calls wrote."""
        if not any(side.is_written for side in self._sides):
            self._database.settle()

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Begin with these; False: their tables are wanted instead."""
        states = [rows for side in self._sides for rows in (side.rows, side.due.rows)]
        return take_over(
            self._database, databases, {rows.layout.name: rows.layout for rows in states}
        )

    def restore(self, states: Iterable[RestoredState]) -> None:
        """Take back from which number on records have none yet."""
        for state in states:
            if state.name == SEQUENCE_STATE and state.table.num_rows:
                self._number = max(self._number, int(state.table["next"].to_numpy().max()))
        self._committed = self._number

    def load(self, side: int, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """Take back records; they count as committed."""
        entries, due = self._sides[side].stored(batch, time, matched, self._number)
        self._sides[side].rows.load(entries)
        self._sides[side].due.load(due)
        self._number = self._committed = self._number + batch.num_rows

    def candidates(self, side: int, hashes: Hashes, low: Times, high: Times) -> Held | None:
        """Read the records of `side` with these hashes and low <= time <= high, and some more; None if there is none."""
        return self._sides[side].candidates(hashes, low, high)

    def met(self, side: int, held: Held, rows: Rows) -> None:
        """Note that records have met one of the other side."""
        self._sides[side].met(held, rows)

    def add(self, side: int, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """Keep the records of a batch."""
        entries, due = self._sides[side].stored(batch, time, matched, self._number)
        self._sides[side].rows.put(entries)
        self._sides[side].due.replace((), due)
        self._number += batch.num_rows

    def expired(
        self, side: int, watermark_ns: int, rows_max: int
    ) -> tuple[pa.RecordBatch, Times, int, bool]:
        """Drop records that can meet nothing any more, `rows_max` at most, the oldest first.

        Returns: those that never met one, and their times; how many were dropped; whether those were all.
        """
        return self._sides[side].expired(watermark_ns, rows_max)

    # --- the owner thread ---------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make a layer of what was written."""
        self._committed = self._number
        for side in self._sides:
            side.rows.stage()
            side.due.rows.stage()
        self._database.commit()

    def snapshot(self) -> StateSnapshot:
        """Freeze the number of the next record."""
        groups, number = self._groups, self._committed

        def table() -> pa.Table:
            owned = np.arange(groups.start, groups.stop, dtype=np.uint16)
            numbers = np.full(len(owned), number, np.int64)
            return pa.table([pa.array(owned), pa.array(numbers)], schema=_SEQUENCE_SCHEMA)

        return StateSnapshot(SEQUENCE_STATE, StateKind.KEYED, table)

    def freeze_database(self) -> DatabaseSnapshot:
        """Freeze the database."""
        return self._database.snapshot()

    def close(self) -> None:
        """Remove the database."""
        self._database.close()


class _Side:
    """Records of one side: keys are hash, time and number, values all columns."""

    def __init__(
        self,
        database: RocksDatabase,
        name: str,
        given: JoinInput,
        kept_ns: int,
        groups: range,
        max_parallelism: int,
    ) -> None:
        self._given = given
        self._kept_ns = kept_ns
        self._max_parallelism = max_parallelism
        values = [*given.schema, TIME, MATCHED]
        key = [HASH, AT, NUMBER]
        layout = StateLayout(name, len(key), pa.schema([*key, *values]))
        self.rows = RocksRows(database, layout)
        self.due = DueIndex(database, name + DUE_SUFFIX, [HASH, NUMBER], groups, max_parallelism)
        self._keys = KeyCodec(name, key, max_parallelism)
        self._values = value_codec(values)

    @property
    def is_written(self) -> bool:
        return self.rows.is_written or self.due.rows.is_written

    def stored(
        self, batch: pa.RecordBatch, time: Times, matched: Mask, first: int
    ) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Make the entries of records numbered from `first` on, and those of their index."""
        hashes = hash_rows(batch, self._given.keys)
        groups = groups_of_hashes(hashes, self._max_parallelism)
        numbers = pa.array(np.arange(first, first + batch.num_rows))
        keys = self._stored_keys(hashes, time, numbers, groups)
        due = self.due.keys(time + self._kept_ns, [pa.array(hashes), numbers], groups)
        return list(zip(keys, self._encoded(batch, time, matched), strict=True)), due

    def candidates(self, hashes: Hashes, low: Times, high: Times) -> Held | None:
        distinct, of = np.unique(hashes, return_inverse=True)
        first = np.full(len(distinct), np.iinfo(np.int64).max)
        last = np.full(len(distinct), np.iinfo(np.int64).min)
        np.minimum.at(first, of, low)
        np.maximum.at(last, of, high)
        groups = groups_of_hashes(distinct, self._max_parallelism)
        numbers = pa.array(np.zeros(len(distinct), np.int64))
        lower = self._stored_keys(distinct, first, numbers, groups)
        upper = self._stored_keys(distinct, last, numbers, groups)
        cursor = self.rows.cursor()
        pairs: list[Pair] = []
        for begin, end in sorted(zip(lower, upper, strict=True)):
            begin, end = begin[:-_WORD_BYTES], end[:-_WORD_BYTES] + b"\2"
            pairs += self.rows.range(cursor, begin, end)
        return self._held(pairs) if pairs else None

    def met(self, held: Held, rows: Rows) -> None:
        run = held.run
        rows = np.unique(rows)
        rows = rows[~run.matched[rows]]
        if not len(rows):
            return
        met = run.rows.take(pa.array(rows))
        values = self._encoded(met, run.time[rows], np.ones(len(rows), np.bool_))
        self.rows.put(zip([held.keys[row] for row in rows], values, strict=True))

    def expired(self, watermark_ns: int, rows_max: int) -> tuple[pa.RecordBatch, Times, int, bool]:
        due, done = self.due.due(watermark_ns, rows_max)
        times, (hashes, numbers), groups = self.due.columns(due)
        keys = self._stored_keys(hashes.to_numpy(), times - self._kept_ns, numbers, groups)
        values = [value for value in self.rows.get(keys) if value is not None]
        assert len(values) == len(keys), "a record that expires does not exist"
        rows, time, matched = self._decoded(values)
        gone: list[Entry] = [(key, None) for key in keys]
        self.rows.put(gone)
        self.due.replace(due, ())
        return rows.filter(pa.array(~matched)), time[~matched], len(keys), done

    def _held(self, pairs: Sequence[Pair]) -> Held:
        keys = [key for key, _ in pairs]
        rows, time, matched = self._decoded([value for _, value in pairs])
        hashes: Hashes = self._keys.decode(keys)[0].to_numpy()
        order = np.lexsort((time, hashes))
        run = sorted_run(rows.take(pa.array(order)), time[order], matched[order], hashes[order])
        return Held(run, [keys[at] for at in order])

    def _stored_keys(
        self, hashes: Hashes, time: Times, numbers: pa.Array, groups: KeyGroups
    ) -> list[bytes]:
        columns = [pa.array(hashes), pa.array(biased(time)), numbers]
        return self._keys.encode(columns, groups)

    def _encoded(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> list[bytes]:
        return self._values.encode([*batch.columns, pa.array(time), pa.array(matched)])

    def _decoded(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Times, Mask]:
        *columns, time, matched = self._values.decode(values)
        rows = pa.RecordBatch.from_arrays(columns, schema=self._given.schema)
        return rows, time.to_numpy(), matched.to_numpy(zero_copy_only=False)
