"""The records of a join that lie in RocksDB: for each side a row per record, and an index that tells which can meet nothing any more.

What a batch may meet is read (`rocks_records.py`), and the operator works on it as it does in memory. So memory holds what one batch meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows
from headrace.channels.keygroups import groups_of_hashes, key_group_range

from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateSnapshot,
)
from ..state.arrays import Mask
from ..state.rocks.database import RocksDatabase
from ..state.rocks.due import DueIndex
from .backends import make_database, take_over
from .join_runs import JoinInput, Rows
from .rocks_records import HASH, NUMBER, Held, Numbers, RocksRecords
from .window_store import DUE_SUFFIX
from .windows import Times


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
        groups = key_group_range(context.max_parallelism, context.parallelism, context.index)
        self._sides = [
            _Side(self._database, name, given, kept, groups, context.max_parallelism)
            for name, given, kept in zip(names, inputs, kept_ns, strict=True)
        ]
        self._numbers = Numbers(groups)

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
        self._numbers.restore(states)

    def load(self, side: int, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """Take back records; they count as committed."""
        entries, due = self._sides[side].stored(batch, time, matched, self._numbers.next)
        self._sides[side].rows.load(entries)
        self._sides[side].due.load(due)
        self._numbers.next += batch.num_rows
        self._numbers.commit()

    def candidates(self, side: int, hashes: Hashes, low: Times, high: Times) -> Held | None:
        """Read the records of `side` with these hashes and low <= time <= high, and some more; None if there is none."""
        return self._sides[side].candidates(hashes, low, high)

    def met(self, side: int, held: Held, rows: Rows) -> None:
        """Note that records have met one of the other side."""
        self._sides[side].met(held, rows)

    def add(self, side: int, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """Keep the records of a batch."""
        entries, due = self._sides[side].stored(batch, time, matched, self._numbers.next)
        self._sides[side].rows.put(entries)
        self._sides[side].due.replace((), due)
        self._numbers.next += batch.num_rows

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
        self._numbers.commit()
        for side in self._sides:
            side.rows.stage()
            side.due.rows.stage()
        self._database.commit()

    def snapshot(self) -> StateSnapshot:
        """Freeze the number of the next record."""
        return self._numbers.snapshot()

    def freeze_database(self) -> DatabaseSnapshot:
        """Freeze the database."""
        return self._database.snapshot()

    def close(self) -> None:
        """Remove the database."""
        self._database.close()


class _Side(RocksRecords):
    """Records of one side, and an index that tells which can meet nothing any more."""

    def __init__(
        self,
        database: RocksDatabase,
        name: str,
        given: JoinInput,
        kept_ns: int,
        groups: range,
        max_parallelism: int,
    ) -> None:
        super().__init__(database, name, given, max_parallelism)
        self._kept_ns = kept_ns
        self.due = DueIndex(database, name + DUE_SUFFIX, [HASH, NUMBER], groups, max_parallelism)

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
        keys = self.stored_keys(hashes, time, numbers, groups)
        due = self.due.keys(time + self._kept_ns, [pa.array(hashes), numbers], groups)
        return list(zip(keys, self.encoded(batch, time, matched), strict=True)), due

    def met(self, held: Held, rows: Rows) -> None:
        run = held.run
        rows = np.unique(rows)
        rows = rows[~run.matched[rows]]
        if not len(rows):
            return
        met = run.rows.take(pa.array(rows))
        values = self.encoded(met, run.time[rows], np.ones(len(rows), np.bool_))
        self.rows.put(zip([held.keys[row] for row in rows], values, strict=True))

    def expired(self, watermark_ns: int, rows_max: int) -> tuple[pa.RecordBatch, Times, int, bool]:
        due, done = self.due.due(watermark_ns, rows_max)
        times, (hashes, numbers), groups = self.due.columns(due)
        keys = self.stored_keys(hashes.to_numpy(), times - self._kept_ns, numbers, groups)
        values = [value for value in self.rows.get(keys) if value is not None]
        assert len(values) == len(keys), "a record that expires does not exist"
        rows, time, matched = self.decoded(values)
        self.drop(keys)
        self.due.replace(due, ())
        return rows.filter(pa.array(~matched)), time[~matched], len(keys), done
