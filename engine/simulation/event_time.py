"""Event time in simulated jobs: when each record happened, watermarks from that, and a keyed operator with timers.

A record's time follows from its id, so the reference knows what each bucket must hold. Within a split, times are out of order by less
than `DELAY_NS`, and watermarks are made split by split: then no record is late, every bucket is told once and whole, and a timer that
fires too early, twice or never shows in what the sinks hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK

from ..operators.base import OperatorContext, RestoredState, StateKind, StateSnapshot
from ..operators.process import StatefulProcessor
from ..operators.timed_process import TimedProcessOperator
from ..state.keyed import map_state
from .source import ID_SPAN, SCHEMA, records_of

#: Records of a source are this far apart, but for their disorder.
_STEP_NS: Final = 10
#: No record is older than the newest before it by more.
DELAY_NS: Final = 45
BUCKET_NS: Final = 70
_SEEN: Final = pa.schema([(name, pa.int64()) for name in ("split", "id", "newest")])


def time_of(id: Any) -> Any:
    """When a record of a source happened; works on numbers and arrays."""
    return id % ID_SPAN * _STEP_NS + id * 2654435761 % DELAY_NS


def bucket_of(id: int) -> int:
    """The end of the bucket that a record falls into: the last nanosecond of it."""
    return int(time_of(id)) // BUCKET_NS * BUCKET_NS + BUCKET_NS - 1


def told_of(count: int, total: int, bucket: int) -> int:
    """The id of the record that tells what a bucket held."""
    return (total * 31 + count) * 101 + bucket


class Times:
    """Makes watermarks from the ids, split by split: the oldest of the subtask's splits that are not read to their end decides.

    State: the last id of each split, which goes with the split to whoever reads it after a rescale.
    """

    def __init__(self, source: int, rows: int, splits: int) -> None:
        self._source = source
        self._rows = rows
        self._splits = splits
        #: {split: (its last id read, newest time)}; splits that were not begun are not in it.
        self._seen: dict[int, tuple[int, int]] = {}
        self._committed: dict[int, tuple[int, int]] = {}
        #: {split: its last id}
        self._own: dict[int, int] = {}
        self.records = 0

    @property
    def watermark_ns(self) -> int:
        """See `WatermarkGenerator`."""
        last = [self._seen.get(split, (-1, 0)) for split in self._own]
        left = [seen for seen, end in zip(last, self._own.values(), strict=True) if seen[0] != end]
        if any(id < 0 for id, _ in left) or not self._seen:
            return MIN_WATERMARK
        newest = [time for _, time in left]
        return (min(newest) if newest else max(time for _, time in last)) - DELAY_NS - 1

    def open(self, context: OperatorContext) -> None:
        """Note which splits this subtask reads."""
        for split in range(context.index, self._splits, context.parallelism):
            ids = records_of(self._source, self._rows)[split :: self._splits]
            if ids:
                self._own[split] = ids[-1]

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on with the splits that are this subtask's now."""
        rows = [row for state in states for row in state.table.to_pylist()]
        mine = {r["split"]: (r["id"], r["newest"]) for r in rows if r["split"] in self._own}
        self._seen, self._committed = mine, dict(mine)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Look at the ids and pass the batch on."""
        self.records += batch.num_rows
        for id in batch.column(0).to_pylist():
            split = id % ID_SPAN % self._splits
            newest = max(int(time_of(id)), self._seen.get(split, (0, 0))[1])
            self._seen[split] = (id, newest)
        yield batch

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Nothing is held back."""
        return ()

    def commit(self) -> None:
        """Publish the splits' times."""
        self._committed = dict(self._seen)

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze them."""
        rows = [{"split": s, "id": i, "newest": t} for s, (i, t) in self._committed.items()]
        table = partial(pa.Table.from_pylist, rows, schema=_SEEN)
        return (StateSnapshot("seen", StateKind.UNION, table),)

    def close(self) -> None:
        """Nothing is held."""


class Buckets(StatefulProcessor):
    """Counts and sums the ids of each key by bucket, and tells them when the bucket's time is over."""

    counts = map_state(pa.int64(), pa.int64())
    totals = map_state(pa.int64(), pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> None:
        """Add the record to its bucket."""
        bucket = bucket_of(row["id"])
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.totals[bucket] = self.totals.get(bucket, 0) + row["id"]
        self.timers.set(bucket)

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        """Tell the bucket and forget it; one that fires twice is told as empty."""
        count, total = self.counts.pop(time_ns, 0), self.totals.pop(time_ns, 0)
        told = told_of(count, total, time_ns)
        yield {"id": told, "key": key, "path": 0, "by": 0, "nth": 0, "sender": 0}


def buckets(name: str) -> TimedProcessOperator:
    """The keyed operator."""
    return TimedProcessOperator(Buckets, ["key"], SCHEMA, SCHEMA, operator=name)
