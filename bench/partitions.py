"""A source of numbered records in a fixed number of partitions, like a topic's: what campaigns that
rescale a job read.

Partition p of P makes the numbers p, p + P, p + 2P, ... A partition moves between subtasks as a
whole, so its records keep their order through every rescale; those of a sequence are dealt out
afresh to as many strides as there are subtasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)

_SCHEMA = pa.schema([("key", pa.int64()), ("sequence", pa.int64())])
_NEXT = pa.schema([("partition", pa.int64()), ("next", pa.int64())])
_BATCH_ROWS = 512
#: Records come due in portions, so often: one by one, asking for them would be most of a slow
#: source's work.
_EVERY_S = 0.01
_WAIT_NS = 10_000_000


@dataclass(frozen=True, slots=True)
class PartitionedSource:
    """Records (`key`, `sequence`).

    Attributes:
        rows: in all.
        partitions: how many; also what `audit.judge` takes as `producers`.
        keys: how many; every partition has records of all keys.
        rate_per_s: of the whole job.
        hurry: once this file exists all that is left is made at once.
    """

    rows: int
    partitions: int
    keys: int
    rate_per_s: float
    hurry: str

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    def reader(self) -> PartitionedReader:
        return PartitionedReader(self)


class PartitionedReader:
    """Reads every so-many-th partition, in turn."""

    def __init__(self, source: PartitionedSource) -> None:
        self._source = source
        self._index, self._parallelism = 0, 1
        #: {partition of ours: records of it that were made}; `poll`'s, and what is committed.
        self._made: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._began_s = time.monotonic()
        self._paced = 0

    def open(self, context: OperatorContext) -> None:
        self._index, self._parallelism = context.index, context.parallelism
        self._begin({})

    def restore(self, states: Sequence[RestoredState]) -> None:
        rows = [row for state in states for row in state.table.to_pylist()]
        self._begin({row["partition"]: row["next"] for row in rows})

    def poll(self, rows_max: int) -> Polled:
        left = {p: self._length(p) - made for p, made in self._made.items()}
        open_ = [partition for partition in left if left[partition]]
        if not open_:
            return Polled((), SourceStatus.END)
        # The one that is furthest behind, so that all advance alike.
        partition = min(open_, key=lambda p: (self._made[p], p))
        rows = min(rows_max, _BATCH_ROWS, left[partition], self._due())
        if rows <= 0:
            return Polled((), SourceStatus.IDLE, _WAIT_NS)
        first = self._made[partition]
        self._made[partition] += rows
        self._paced += rows
        numbers = np.arange(first, first + rows) * self._source.partitions + partition
        keys = (numbers // self._source.partitions * 31 + partition) % self._source.keys
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(numbers)], schema=_SCHEMA)
        return Polled((batch,), SourceStatus.MORE, split=str(partition))

    def open_splits(self) -> frozenset[str]:
        return frozenset(str(p) for p, made in self._made.items() if made < self._length(p))

    def commit(self) -> None:
        self._committed = dict(self._made)

    def snapshot(self) -> Sequence[StateSnapshot]:
        made = self._committed
        rows = {"partition": list(made), "next": list(made.values())}
        return (StateSnapshot("next", StateKind.UNION, lambda: pa.table(rows, schema=_NEXT)),)

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self, made: dict[int, int]) -> None:
        mine = range(self._index, self._source.partitions, self._parallelism)
        self._made = {partition: made.get(partition, 0) for partition in mine}
        self._committed = dict(self._made)

    def _length(self, partition: int) -> int:
        """Records of the partition."""
        return -(-(self._source.rows - partition) // self._source.partitions)

    def _due(self) -> int:
        if os.path.exists(self._source.hurry):
            return _BATCH_ROWS
        each_s = self._parallelism / self._source.rate_per_s
        portions = (time.monotonic() - self._began_s) // _EVERY_S
        return min(64, int(portions * _EVERY_S / each_s) - self._paced)
