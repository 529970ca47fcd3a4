"""Watermarks from a column of event times that is out of order by a bounded delay.

The watermark is the newest time seen, less the delay, less a nanosecond: a record as old as the
delay allows is still in time. Later records are late, and each operator decides what to do with
late records.

In a stream that comes from its source without an exchange, each split that the subtask reads has a
newest time, and the oldest of these times counts (`split_times.py`); any other stream has a single
newest time.

Source: Flink's bounded-out-of-orderness watermarks, and the split-level watermarks of FLIP-27
(behaviour).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.operators import OperatorContext, RestoredState, StateSnapshot
from .split_times import SplitTimes

NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


class _BySplits:
    """Passes records on, and keeps a time for each split of the source."""

    def __init__(self, idle_after_ns: int | None = None) -> None:
        self._times = SplitTimes(idle_after_ns)
        self.records = 0

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
        """Pass the batch on."""
        self.records += batch.num_rows
        yield batch

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Emit no records: none are held back."""
        return ()

    def commit(self) -> None:
        """Publish the splits' times."""
        self._times.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the splits' times."""
        return self._times.snapshot()

    def close(self) -> None:
        """Do nothing: there are no resources."""


class WatermarkOperator(_BySplits):
    """Passes records on and keeps the newest time of `column`, a timestamp; nulls do not count."""

    def __init__(
        self,
        column: str,
        delay_ns: int,
        schema: pa.Schema,
        *,
        operator: str,
        idle_after_ns: int | None = None,
    ) -> None:
        super().__init__(idle_after_ns)
        self._index = schema.get_field_index(column)
        assert pa.types.is_timestamp(schema.field(self._index).type), f"{operator}: {column}"
        self._unit_ns = NANOSECONDS[schema.field(self._index).type.unit]
        self._delay_ns = delay_ns

    @property
    def watermark_ns(self) -> int:
        """See `WatermarkGenerator`."""
        newest_ns = self._times.newest_ns
        if newest_ns is None:
            return MIN_WATERMARK
        # The highest is for the end of input alone.
        return min(max(newest_ns - self._delay_ns - 1, MIN_WATERMARK), MAX_WATERMARK - 1)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Look at the times and pass the batch on."""
        newest_ns = self._newest_of(batch)
        if newest_ns is not None:
            self._times.came(newest_ns)
        return super().process(batch, port)

    def _newest_of(self, batch: pa.RecordBatch) -> int | None:
        newest = pc.max(batch.column(self._index).view(pa.int64())).as_py()
        if newest is None:
            return None
        found: int = newest * self._unit_ns
        return min(max(found, MIN_WATERMARK), MAX_WATERMARK)


class CarriedWatermarkOperator(_BySplits):
    """Passes records on; its watermarks come with the splits of its source (`CarriedGenerator`)."""

    def __init__(self, *, operator: str) -> None:
        super().__init__()

    @property
    def watermark_ns(self) -> int:
        """See `WatermarkGenerator`."""
        newest_ns = self._times.newest_ns
        return MIN_WATERMARK if newest_ns is None else newest_ns

    def carried(self, watermark_ns: int) -> None:
        """See `CarriedGenerator`. Asked for after the poll's records have passed."""
        if watermark_ns > MIN_WATERMARK:
            # The highest is for the end of input alone.
            self._times.came(min(watermark_ns, MAX_WATERMARK - 1))
