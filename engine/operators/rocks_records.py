"""The records of one side of a join that lie in RocksDB: a row for each.

Rows are in the order of the hash of their key, then of time, so what a batch or a session may meet are ranges: one for each distinct key in it.
They are read into a `Run` (`join_runs.py`), on which operators work as they do in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows
from headrace.channels.keygroups import KeyGroups, groups_of_hashes

from ..contract.operators import RestoredState, StateKind, StateLayout, StateSnapshot
from ..state.arrays import Mask
from ..state.rocks.codecs import KeyCodec
from ..state.rocks.database import RocksDatabase
from ..state.rocks.due import biased
from ..state.rocks.files import Entry
from ..state.rocks.rows import Pair, RocksRows
from ..state.rocks.values import value_codec
from ..state.tables import KEY_GROUP
from .join_runs import SEQUENCE_STATE, JoinInput, Run, sorted_run, state_schema
from .windows import Times

# Format, never change.
HASH = pa.field("__hash", pa.uint64(), nullable=False)
AT = pa.field("__at", pa.uint64(), nullable=False)
NUMBER = pa.field("__number", pa.int64(), nullable=False)
_SEQUENCE_SCHEMA = pa.schema([KEY_GROUP, pa.field("next", pa.int64(), nullable=False)])

_WORD_BYTES = 9


@dataclass(frozen=True, slots=True)
class Held:
    """Records that a batch or a session may meet, and their stored keys."""

    run: Run
    keys: Sequence[bytes]


class Numbers:
    """The numbers of records, of which each has its own.

    Attributes:
        next: of the next record, as the running work sees it.
    """

    def __init__(self, groups: range) -> None:
        self._groups = groups
        self.next = self._committed = 0

    def commit(self) -> None:
        """Publish it to snapshots."""
        self._committed = self.next

    def restore(self, states: Iterable[RestoredState]) -> None:
        """Take back from which number on records have none yet."""
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


class RocksRecords:
    """Records of one side: keys are hash, time and number, values all columns.

    Attributes:
        rows: the state.
    """

    def __init__(
        self, database: RocksDatabase, name: str, given: JoinInput, max_parallelism: int
    ) -> None:
        self._given = given
        self._max_parallelism = max_parallelism
        values = list(state_schema(given))
        key = [HASH, AT, NUMBER]
        self.rows = RocksRows(database, StateLayout(name, len(key), pa.schema([*key, *values])))
        self._keys = KeyCodec(name, key, max_parallelism)
        self._values = value_codec(values)

    def entries(
        self, batch: pa.RecordBatch, time: Times, matched: Mask, first: int
    ) -> list[tuple[bytes, bytes]]:
        """Make the entries of records numbered from `first` on."""
        hashes = hash_rows(batch, self._given.keys)
        numbers = pa.array(np.arange(first, first + batch.num_rows))
        keys = self.stored_keys(hashes, time, numbers)
        return list(zip(keys, self.encoded(batch, time, matched), strict=True))

    def candidates(self, hashes: Hashes, low: Times, high: Times) -> Held | None:
        """Read the records with these hashes and low <= time <= high, and some more; None if there is none."""
        distinct, of = np.unique(hashes, return_inverse=True)
        first = np.full(len(distinct), np.iinfo(np.int64).max)
        last = np.full(len(distinct), np.iinfo(np.int64).min)
        np.minimum.at(first, of, low)
        np.maximum.at(last, of, high)
        numbers = pa.array(np.zeros(len(distinct), np.int64))
        lower = self.stored_keys(distinct, first, numbers)
        upper = self.stored_keys(distinct, last, numbers)
        cursor = self.rows.cursor()
        pairs: list[Pair] = []
        for begin, end in sorted(zip(lower, upper, strict=True)):
            begin, end = begin[:-_WORD_BYTES], end[:-_WORD_BYTES] + b"\2"
            pairs += self.rows.range(cursor, begin, end)
        return self._held(pairs) if pairs else None

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget records by their stored keys."""
        gone: list[Entry] = [(key, None) for key in keys]
        self.rows.put(gone)

    def stored_keys(
        self,
        hashes: Hashes,
        time: Times,
        numbers: pa.Array,
        groups: KeyGroups | None = None,
    ) -> list[bytes]:
        """Make the keys of records; `groups` where they are known."""
        if groups is None:
            groups = groups_of_hashes(hashes, self._max_parallelism)
        columns = [pa.array(hashes), pa.array(biased(time)), numbers]
        return self._keys.encode(columns, groups)

    def encoded(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> list[bytes]:
        """Make the values of records."""
        return self._values.encode([*batch.columns, pa.array(time), pa.array(matched)])

    def decoded(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Times, Mask]:
        """Make records, their times, and whether each has met one, of values."""
        *columns, time, matched = self._values.decode(values)
        rows = pa.RecordBatch.from_arrays(columns, schema=self._given.schema)
        return rows, time.to_numpy(), matched.to_numpy(zero_copy_only=False)

    def _held(self, pairs: Sequence[Pair]) -> Held:
        keys = [key for key, _ in pairs]
        rows, time, matched = self.decoded([value for _, value in pairs])
        hashes: Hashes = self._keys.decode(keys)[0].to_numpy()
        order = np.lexsort((time, hashes))
        run = sorted_run(rows.take(pa.array(order)), time[order], matched[order], hashes[order])
        return Held(run, [keys[at] for at in order])
