"""Tables of records in memory: sorted runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes

from ..arrays import Mask
from ..backend import Expired
from ..runs import Rows, Run, Times, appended, record_schema, run_of
from ..tables import keyed_table


class HeapHeld:
    """See `Held`."""

    def __init__(self, table: HeapRecords, number: int) -> None:
        self._table = table
        self._number = number
        self.run = table.runs[number]

    def met(self, rows: Rows) -> None:
        """See `Held`."""
        self._table.replace(self._number, self.run.met(rows))

    def drop(self, rows: Rows) -> None:
        """See `Held`.

        Marks records in the run until most are marked, so drops rarely sort a run anew.
        """
        if len(rows):
            self._table.replace(self._number, self.run.met(rows))


class HeapRecords:
    """See `RecordTable`. In a table without expiry, `Run.matched` marks dropped records.

    Attributes:
        runs: the running call's runs.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        kept_ns: int | None,
        max_parallelism: int,
        *,
        unmatched: bool,
    ) -> None:
        self._schema = schema
        self._keys = keys
        self._kept_ns = kept_ns
        self._max_parallelism = max_parallelism
        self._unmatched = unmatched
        self.runs: tuple[Run, ...] = ()
        self._committed: tuple[Run, ...] = ()

    def add(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """See `RecordTable`."""
        self._sweep()
        self.runs = appended(self.runs, run_of(batch, self._keys, time, matched), self._keys)

    def load(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """See `RecordTable`."""
        self.add(batch, time, matched)
        self.commit()

    def find(self, hashes: Hashes, low: Times, high: Times) -> Sequence[HeapHeld]:
        """Return all runs: a probe is a binary search."""
        self._sweep()
        return [HeapHeld(self, number) for number in range(len(self.runs))]

    def replace(self, number: int, run: Run) -> None:
        """Put a run in the place of another."""
        self.runs = (*self.runs[:number], run, *self.runs[number + 1 :])

    def expired(self, watermark_ns: int, rows_max: int) -> Expired:
        """See `RecordTable`. Returns only records without a partner, and only if wanted."""
        assert self._kept_ns is not None, "these records do not expire"
        empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        batches, times, room, done = [empty], [np.zeros(0, np.int64)], rows_max, True
        kept: list[Run] = []
        for run in self.runs:
            left, alone, all_of_it = self._without_expired(run, watermark_ns, room)
            batches.append(run.rows.take(pa.array(alone)))
            times.append(run.time[alone])
            room -= len(alone)
            done = done and all_of_it
            kept += [] if left is None else [left]
        self.runs = tuple(kept)
        return Expired(pa.concat_batches(batches), np.concatenate(times), rows_max - room, done)

    def commit(self) -> None:
        """Publish the runs. Owner thread."""
        self._committed = self.runs

    def freeze(self) -> Callable[[], pa.Table]:
        """Keep the committed runs, which do not change; the result makes their table."""
        runs = self._committed
        if self._kept_ns is None:
            return lambda: self._table(_undropped(runs))
        return partial(self._table, runs)

    def _table(self, runs: Sequence[Run]) -> pa.Table:
        return _table_of(runs, self._schema, self._keys, self._max_parallelism)

    def _sweep(self) -> None:
        """Rebuild runs without their dropped records, where most records are dropped."""
        if self._kept_ns is None and any(_mostly(run.matched) for run in self.runs):
            kept = [run.without(run.matched) if _mostly(run.matched) else run for run in self.runs]
            self.runs = tuple(run for run in kept if run is not None)

    def _without_expired(
        self, run: Run, watermark_ns: int, room: int
    ) -> tuple[Run | None, Rows, bool]:
        """Returns the rest of a run, the rows to be emitted alone, and whether these are all."""
        assert self._kept_ns is not None, "these records do not expire"
        if int(run.times[0]) + self._kept_ns > watermark_ns:
            return run, _NO_ROWS, True
        gone: Mask = run.time + self._kept_ns <= watermark_ns
        if not self._unmatched:
            return (run.without(gone) if _mostly(gone) else run), _NO_ROWS, True
        alone = np.flatnonzero(gone & ~run.matched)
        gone[alone[room:]] = False
        return run.without(gone), alone[:room], len(alone) <= room


def _table_of(
    runs: Sequence[Run], schema: pa.Schema, keys: Sequence[str], max_parallelism: int
) -> pa.Table:
    """Make the keyed table of runs of records; `schema`: the records' columns."""
    stored = record_schema(schema)
    batches = [
        pa.RecordBatch.from_arrays(
            [*run.rows.columns, pa.array(run.time), pa.array(run.matched)], schema=stored
        )
        for run in runs
    ]
    empty = pa.RecordBatch.from_pylist([], schema=stored)
    return keyed_table(pa.concat_batches([empty, *batches]), keys, max_parallelism)


_NO_ROWS: Rows = np.zeros(0, np.int64)


def _mostly(marked: Mask) -> bool:
    return bool(2 * np.count_nonzero(marked) >= len(marked))


def _undropped(runs: Sequence[Run]) -> list[Run]:
    kept = [run.without(run.matched) for run in runs]
    return [run for run in kept if run is not None]
