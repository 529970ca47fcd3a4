"""Operators of random jobs: small, with an output that needs no engine (`reference.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...contract.operators import OperatorContext, RestoredState, StateKind, StateSnapshot
from ...operators.process import StatefulProcessor
from ...operators.stateless import StatelessOperator
from ...state.keyed import list_state
from .source import SCHEMA


class Stamp(StatelessOperator):
    """Marks the path with the task, and the record with the sending subtask."""

    def __init__(self, task: int) -> None:
        self._task = task
        self._index = 0

    def open(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        self._index = context.index

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Set `path` and `sender`."""
        id, key, path, by, nth, _ = batch.columns
        stamped = pa.array(path.to_numpy() * PATH_STEP + self._task + 1)
        sender = pa.array(np.full(batch.num_rows, self._index, np.int64))
        yield pa.RecordBatch.from_arrays([id, key, stamped, by, nth, sender], schema=SCHEMA)


#: A path is a number in this base: a digit a task.
PATH_STEP = 16


class Drop(StatelessOperator):
    """Drops the records of `is_dropped`."""

    def __init__(self, task: int) -> None:
        self._task = task

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Keep the others."""
        ids = batch.column(0).to_numpy()
        yield batch.filter(pa.array(~is_dropped(ids, self._task)))


def is_dropped(id: Any, task: int) -> Any:
    """Whether task `task` drops a record; works on numbers and arrays."""
    return (id + task) % 4 == 0


class Records(StatelessOperator):
    """Makes records of totals."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Make a record per key; the id tells count and sum."""
        ids = pc.add(pc.multiply(batch.column("total"), 31), batch.column("n"))
        zeros = pa.array(np.zeros(batch.num_rows, np.int64))
        columns = [ids, batch.column("key"), zeros, zeros, zeros, zeros]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class History(StatefulProcessor):
    """A list per key: the places of appended records show forks, gaps and repeats of the state."""

    seen = list_state(pa.int64())

    def __init__(self, task: int) -> None:
        self._task = task

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Append, and pass on with the place."""
        self.seen.append(row["id"])
        yield {**row, "by": self._task, "nth": len(self.seen)}


_GATHERED = pa.schema([(name, pa.int64()) for name in ("key", "n", "total")])


class Gather:
    """Reads a broadcast in full: counts and sums records by key, and tells both at the end of
    input.

    The state is of the broadcast kind: a new subtask gets the state of an old subtask, and must get
    the remaining input of the very subtask.
    """

    def __init__(self, task: int) -> None:
        self._task = task
        #: {key: (records, sum of their ids)}, committed and not yet.
        self._seen: dict[int, tuple[int, int]] = {}
        self._fresh: dict[int, tuple[int, int]] = {}
        self._index = 0
        self._told = self._telling = False

    def open(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        self._index = context.index

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take a copy back."""
        for state in states:
            assert not self._seen, "two copies of a broadcast state"
            rows = state.table.to_pylist()
            self._seen = {row["key"]: (row["n"], row["total"]) for row in rows if row["key"] >= 0}
            self._told = any(row["key"] < 0 for row in rows)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Count."""
        fresh = dict(self._seen)
        for id, key in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            n, total = fresh.get(key, (0, 0))
            fresh[key] = (n + 1, total + id)
        self._fresh = fresh
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Tell a record per key, unless an ancestor has."""
        self._fresh, self._telling = self._seen, True
        if self._told or not self._seen:
            return
        keys = sorted(self._seen)
        rows = [
            (self._seen[k][1] * 31 + self._seen[k][0], k, self._task + 1, 0, 0, self._index)
            for k in keys
        ]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)], schema=SCHEMA
        )

    def commit(self) -> None:
        """Publish the counts."""
        self._seen, self._told = self._fresh, self._told or self._telling

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the counts; a key of -1 notes that `finish` ran."""
        rows = [(key, n, total) for key, (n, total) in sorted(self._seen.items())]
        rows += [(-1, 0, 0)] if self._told else []
        columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
        table = pa.Table.from_arrays(columns, schema=_GATHERED)
        return (StateSnapshot("seen", StateKind.BROADCAST, lambda: table),)

    def close(self) -> None:
        """Do nothing: no resource is open."""
