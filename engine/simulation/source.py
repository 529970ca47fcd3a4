"""A source for simulations: numbered records with a key and a checksum, dealt out over the subtasks.

Record `sequence` of source `source` is the same in every run of the job, whoever reads it, so what a job should put out can be
said beforehand. How many records a poll returns, and whether it returns any, is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from ..operators.base import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)
from .scheduler import MILLISECOND_NS

#: id: source * ID_SPAN + sequence; path: which operators it passed; by, nth: the last keyed list that it entered, and at which place;
#: sender: the subtask that sent it last.
SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "key", "path", "by", "nth", "sender")])
ID_SPAN = 1_000_000
_OFFSET = pa.schema([("subtask", pa.int64()), ("next", pa.int64())])


def key_of(id: int, keys: int) -> int:
    """The key of a record: scattered, but the same for all who ask."""
    return (id * 2654435761 >> 7) % keys


def records_of(source: int, rows: int) -> range:
    """Ids of all records of a source."""
    return range(source * ID_SPAN, source * ID_SPAN + rows)


class RecordsReader:
    """Reads every `parallelism`-th record, in order. State: the next place in its share."""

    def __init__(self, source: int, rows: int, keys: int, rng: random.Random) -> None:
        self._source = source
        self._rows = rows
        self._keys = keys
        self._rng = rng
        self._context: OperatorContext | None = None
        self._own: pa.RecordBatch = SCHEMA.empty_table().to_batches()
        self._next = 0
        self._committed = 0

    def open(self, context: OperatorContext) -> None:
        """Make this subtask's share."""
        self._context = context
        ids = list(records_of(self._source, self._rows)[context.index :: context.parallelism])
        count = len(ids)
        zeros = [0] * count
        keys = [key_of(id, self._keys) for id in ids]
        columns = [ids, keys, zeros, zeros, zeros, [context.index] * count]
        self._own = pa.record_batch([pa.array(c, pa.int64()) for c in columns], schema=SCHEMA)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on at the saved place."""
        assert self._context is not None, "opened"
        for state in states:
            for row in state.table.to_pylist():
                if row["subtask"] == self._context.index:
                    self._next = self._committed = row["next"]

    def poll(self, rows_max: int) -> Polled:
        """Some records, or none for now."""
        if self._next >= self._own.num_rows:
            return Polled((), SourceStatus.END)
        if self._rng.random() < 0.15:
            return Polled((), SourceStatus.IDLE, self._rng.randint(1, 5) * MILLISECOND_NS)
        batch = self._own.slice(self._next, min(rows_max, self._rng.randint(1, 8)))
        self._next += batch.num_rows
        return Polled((batch,), SourceStatus.MORE)

    def commit(self) -> None:
        """Publish the place."""
        self._committed = self._next

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the place."""
        assert self._context is not None, "opened"
        row = {"subtask": [self._context.index], "next": [self._committed]}
        return (StateSnapshot("next", StateKind.UNION, lambda: pa.table(row, schema=_OFFSET)),)

    def close(self) -> None:
        """Nothing is held."""
