"""Event time in simulated jobs: times of records, watermarks, and a keyed operator with timers.

A record's time follows from the id, so the reference knows the records of each bucket. Within a
split, times are out of order by less than `DELAY_NS`, and watermarks are made split by split. So no
record is late, and every bucket is told once and whole. A timer that fires too early, twice or
never shows in the sinks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK

from ...contract.operators import OperatorContext, RestoredState, StateSnapshot
from ...operators.process import StatefulProcessor
from ...operators.split_times import SplitTimes
from ...operators.timed_process import TimedProcessOperator
from ...state.keyed import map_state
from .source import ID_SPAN, SCHEMA

#: Records of a source are this far apart, but for their disorder.
_STEP_NS: Final = 10
#: No record is older than the newest before it by more.
DELAY_NS: Final = 45
BUCKET_NS: Final = 70


def time_of(id: Any) -> Any:
    """When a record of a source happened, an even number; works on numbers and arrays."""
    return id % ID_SPAN * _STEP_NS + (id * 2654435761 % DELAY_NS & -2)


def bucket_of(id: int) -> int:
    """The last nanosecond of a record's bucket."""
    return int(time_of(id)) // BUCKET_NS * BUCKET_NS + BUCKET_NS - 1


def told_of(count: int, total: int, bucket: int) -> int:
    """The id of the record that tells a bucket's count and sum."""
    return (total * 31 + count) * 101 + bucket


class Times:
    """Makes watermarks from ids, split by split, like the product's generator
    (`operators/split_times.py`).
    """

    def __init__(self) -> None:
        self._times = SplitTimes()
        self.records = 0

    @property
    def watermark_ns(self) -> int:
        """See `WatermarkGenerator`."""
        newest_ns = self._times.newest_ns
        return MIN_WATERMARK if newest_ns is None else newest_ns - DELAY_NS - 1

    def open(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        self._times.begin(context)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on from the splits' times."""
        self._times.restore(states)

    def opened(self, splits: Collection[str]) -> None:
        """See `SplitGenerator`."""
        self._times.opened(splits)

    def polled(
        self, split: str, splits: Collection[str] | None, now_ns: int, *, empty: bool
    ) -> None:
        """See `SplitGenerator`."""
        self._times.polled(split, splits, now_ns, empty=empty)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Look at the ids and pass the batch on."""
        self.records += batch.num_rows
        self._times.came(max(int(time_of(id)) for id in batch.column(0).to_pylist()))
        yield batch

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Emit no more: each record was passed on at once."""
        return ()

    def commit(self) -> None:
        """Publish the splits' times."""
        self._times.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the splits' times."""
        return self._times.snapshot()

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Buckets(StatefulProcessor):
    """Counts and sums the ids of each key by bucket, and tells both at the bucket's end."""

    counts = map_state(pa.int64(), pa.int64())
    totals = map_state(pa.int64(), pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> None:
        """Add the record to the bucket of the record's time."""
        bucket = bucket_of(row["id"])
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.totals[bucket] = self.totals.get(bucket, 0) + row["id"]
        self.timers.set(bucket)

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        """Tell the bucket and forget the bucket; a second firing tells an empty bucket."""
        count, total = self.counts.pop(time_ns, 0), self.totals.pop(time_ns, 0)
        told = told_of(count, total, time_ns)
        yield {"id": told, "key": key, "path": 0, "by": 0, "nth": 0, "sender": 0}


def buckets(name: str) -> TimedProcessOperator:
    """The keyed operator."""
    return TimedProcessOperator(Buckets, ["key"], SCHEMA, SCHEMA, operator=name)
