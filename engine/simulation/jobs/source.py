"""A source for simulations: numbered records with a key, in splits that subtasks divide.

Record `sequence` of source `source` is equal in every run of the job, whichever subtask reads the
record. So the job's output is known beforehand. The number of records in a poll is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)
from ..scheduler import MILLISECOND_NS

#: id: source * ID_SPAN + sequence; path: the operators behind the record; by, nth: the last keyed
#: list, and the record's place there; sender: the last subtask.
SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "key", "path", "by", "nth", "sender")])
ID_SPAN = 1_000_000
#: Size of a record, as charged to credit.
ROW_BYTES = 8 * len(SCHEMA)
_OFFSET = pa.schema([("split", pa.int64()), ("next", pa.int64())])


def key_of(id: Any, keys: int) -> Any:
    """The key of a record: scattered, and equal in all runs."""
    return (id * 2654435761 >> 7) % keys


def records_of(source: int, rows: int) -> range:
    """Ids of all records of a source."""
    return range(source * ID_SPAN, source * ID_SPAN + rows)


class RecordsReader:
    """Reads splits, each in order: record `sequence` is of split `sequence % splits`.

    State: the next place in each split.
    """

    def __init__(self, source: int, rows: int, keys: int, splits: int, rng: random.Random) -> None:
        self._source = source
        self._rows = rows
        self._keys = keys
        self._splits = splits
        self._rng = rng
        #: {split: its records}
        self._own: dict[int, pa.RecordBatch] = {}
        #: {split: next place}
        self._next: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    def open(self, context: OperatorContext) -> None:
        """Make the records of this subtask's splits."""
        for split in range(context.index, self._splits, context.parallelism):
            ids = np.array(records_of(self._source, self._rows)[split :: self._splits], np.int64)
            zeros = np.zeros(len(ids), np.int64)
            sender = np.full(len(ids), context.index, np.int64)
            columns = [ids, key_of(ids, self._keys), zeros, zeros, zeros, sender]
            arrays = [pa.array(column) for column in columns]
            self._own[split] = pa.record_batch(arrays, schema=SCHEMA)
        self._next = dict.fromkeys(self._own, 0)
        self._committed = dict(self._next)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on at the saved places of this subtask's splits."""
        for state in states:
            for row in state.table.to_pylist():
                if row["split"] in self._own:
                    self._next[row["split"]] = row["next"]
        self._committed = dict(self._next)

    def poll(self, rows_max: int) -> Polled:
        """Some records of a split, or none for now."""
        left = [split for split, own in self._own.items() if self._next[split] < own.num_rows]
        if not left:
            return Polled((), SourceStatus.END)
        if self._rng.random() < 0.15:
            return Polled((), SourceStatus.IDLE, self._rng.randint(1, 5) * MILLISECOND_NS)
        split = self._rng.choice(left)
        rows = min(rows_max, self._rng.randint(1, 8))
        batch = self._own[split].slice(self._next[split], rows)
        self._next[split] += batch.num_rows
        return Polled((batch,), SourceStatus.MORE, split=str(split))

    def open_splits(self) -> frozenset[str]:
        """The splits that have records left."""
        left = (s for s, own in self._own.items() if self._next[s] < own.num_rows)
        return frozenset(map(str, left))

    def commit(self) -> None:
        """Publish the places."""
        self._committed = dict(self._next)

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the places."""
        places = self._committed
        rows = {"split": list(places), "next": list(places.values())}
        return (StateSnapshot("next", StateKind.UNION, lambda: pa.table(rows, schema=_OFFSET)),)

    def close(self) -> None:
        """Do nothing: no resource is open."""
