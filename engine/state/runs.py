"""Records of keys as sorted runs, which never change.

A batch becomes a run, sorted by the hash of its key and by time; binary search probes the run with
a whole batch at once. Runs merge like the digits of a binary counter, so there are few, and each
record is copied a logarithmic number of times. Runs are values: the running work makes a new tuple
of runs, and a snapshot keeps the old tuple.

The hash only finds candidates: the caller compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows

from .arrays import Mask

# Format, never change.
TIME = pa.field("__time", pa.int64(), nullable=False)
MATCHED = pa.field("__matched", pa.bool_(), nullable=False)
#: Nanoseconds since 1970.
Times = npt.NDArray[np.int64]
#: Positions of rows.
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Records sorted by hash and time.

    Attributes:
        rows: the records.
        time: times of the records, or starts of their windows, in nanoseconds since 1970.
        matched: whether each record has met a record of the other side.
        hashes: the distinct hashes, sorted.
        times: the distinct times, sorted.
        place: rank of each record's hash and rank of its time in one number, sorted.
    """

    rows: pa.RecordBatch
    time: Times
    matched: Mask
    hashes: Hashes
    times: Times
    place: Rows

    def probe(self, hashes: Hashes, low: Times, high: Times) -> tuple[Rows, Rows]:
        """Find the records with equal hash and low <= time <= high.

        Returns pairs (probing row, row of the run).
        """
        first, end = self.spans(hashes, low, high)
        counts = end - first
        probing = np.repeat(np.arange(len(hashes)), counts)
        within = np.arange(len(probing)) - np.repeat(np.cumsum(counts) - counts, counts)
        return probing, np.repeat(first, counts) + within

    def spans(self, hashes: Hashes, low: Times, high: Times) -> tuple[Rows, Rows]:
        """Find where the records with equal hash and low <= time <= high begin and end.

        The end is exclusive; it equals the begin where there is no such record.
        """
        rank = np.searchsorted(self.hashes, hashes)
        known = self.hashes.take(rank, mode="clip") == hashes
        base = rank * (len(self.times) + 1)
        first = np.searchsorted(self.place, base + np.searchsorted(self.times, low, "left"))
        end = np.searchsorted(self.place, base + np.searchsorted(self.times, high, "right"))
        return first, np.where(known, np.maximum(end, first), first)

    def met(self, rows: Rows) -> Run:
        """Return this run with `rows` marked as matched by the other side."""
        matched = self.matched.copy()
        matched[rows] = True
        return replace(self, matched=matched)

    def without(self, gone: Mask) -> Run | None:
        """Return the unmarked records; None if there are none left."""
        kept = ~gone
        if not kept.any():
            return None
        hashes = np.repeat(self.hashes, np.diff(self._bounds()))[kept]
        rows = self.rows.filter(pa.array(kept))
        return sorted_run(rows, self.time[kept], self.matched[kept], hashes)

    def _bounds(self) -> Rows:
        ranks = np.arange(len(self.hashes) + 1) * (len(self.times) + 1)
        bounds: Rows = np.searchsorted(self.place, ranks)
        return bounds


def run_of(rows: pa.RecordBatch, keys: Sequence[str], time: Times, matched: Mask) -> Run:
    """Sort records, at least one, into a run."""
    hashes = hash_rows(rows, keys)
    order = np.lexsort((time, hashes))
    return sorted_run(rows.take(pa.array(order)), time[order], matched[order], hashes[order])


def appended(runs: Sequence[Run], new: Run, keys: Sequence[str]) -> tuple[Run, ...]:
    """Add a run, merged with as many of the newest as are no larger than about itself."""
    joined = [*runs, new]
    while len(joined) > 1 and 2 * joined[-1].rows.num_rows >= joined[-2].rows.num_rows:
        joined[-2:] = [_merged(joined[-2], joined[-1], keys)]
    return tuple(joined)


def _merged(one: Run, other: Run, keys: Sequence[str]) -> Run:
    rows = pa.concat_batches([one.rows, other.rows])
    time = np.concatenate([one.time, other.time])
    return run_of(rows, keys, time, np.concatenate([one.matched, other.matched]))


def sorted_run(rows: pa.RecordBatch, time: Times, matched: Mask, hashes: Hashes) -> Run:
    """Make a run of records in the order of hash and time."""
    distinct, hash_rank = np.unique(hashes, return_inverse=True)
    times, time_rank = np.unique(time, return_inverse=True)
    place = hash_rank.astype(np.int64) * (len(times) + 1) + time_rank
    return Run(rows, time, matched, distinct, times, place)


def record_schema(schema: pa.Schema) -> pa.Schema:
    """Add the columns of a record's state to `schema`."""
    return pa.schema([*schema, TIME, MATCHED])
