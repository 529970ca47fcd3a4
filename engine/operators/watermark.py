"""Watermarks from a column of event times that is out of order by a bounded delay.

The watermark is the newest time seen, less the delay, less a nanosecond: a record as old as the delay allows is still in time. What comes later
than that is late, and up to the operator that meets it.

The newest time is state: without it a restored job would start from the beginning of time and wait for the first record. At another
parallelism every subtask starts from the oldest one's, since any of their splits may be its own now.

Source: Flink's bounded-out-of-orderness watermarks (behaviour). Deviation: one watermark a subtask, not one a split: the readers here read
split after split, so there is never more than one to be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from .base import OperatorContext, RestoredState, StateKind, StateSnapshot

NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_STATE: Final = "newest"
_SCHEMA: Final = pa.schema(
    [("subtask", pa.int64()), ("parallelism", pa.int64()), ("newest_ns", pa.int64())]
)


class WatermarkOperator:
    """Passes records on and keeps the newest time of `column`, a timestamp; nulls say nothing."""

    def __init__(self, column: str, delay_ns: int, schema: pa.Schema, *, operator: str) -> None:
        self._index = schema.get_field_index(column)
        assert pa.types.is_timestamp(schema.field(self._index).type), f"{operator}: {column}"
        self._unit_ns = NANOSECONDS[schema.field(self._index).type.unit]
        self._delay_ns = delay_ns
        self._context: OperatorContext | None = None
        #: Newest time seen, nanoseconds since 1970; None before the first.
        self._newest_ns: int | None = None
        self._committed_ns: int | None = None
        self.records = 0

    @property
    def watermark_ns(self) -> int:
        """See `WatermarkGenerator`."""
        if self._newest_ns is None:
            return MIN_WATERMARK
        # The highest is for the end of input alone.
        return min(max(self._newest_ns - self._delay_ns - 1, MIN_WATERMARK), MAX_WATERMARK - 1)

    def open(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        self._context = context

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on from the own time, or from the oldest when the parallelism has changed."""
        assert self._context is not None, "opened"
        rows = [row for state in states for row in state.table.to_pylist()]
        mine = [
            row
            for row in rows
            if (row["subtask"], row["parallelism"])
            == (self._context.index, self._context.parallelism)
        ]
        times = [row["newest_ns"] for row in mine or rows]
        known = bool(times) and None not in times
        self._newest_ns = self._committed_ns = min(times) if known else None

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Look at the times and pass the batch on."""
        self.records += batch.num_rows
        newest_ns = self._newest_of(batch)
        if newest_ns is not None and (self._newest_ns is None or newest_ns > self._newest_ns):
            self._newest_ns = newest_ns
        yield batch

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Nothing is held back."""
        return ()

    def commit(self) -> None:
        """Publish the newest time."""
        self._committed_ns = self._newest_ns

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the newest time."""
        assert self._context is not None, "opened"
        row = [[self._context.index], [self._context.parallelism], [self._committed_ns]]
        return (StateSnapshot(_STATE, StateKind.UNION, lambda: pa.table(row, schema=_SCHEMA)),)

    def close(self) -> None:
        """Nothing is held."""

    def _newest_of(self, batch: pa.RecordBatch) -> int | None:
        newest = pc.max(batch.column(self._index).view(pa.int64())).as_py()
        if newest is None:
            return None
        found: int = newest * self._unit_ns
        return min(max(found, MIN_WATERMARK), MAX_WATERMARK)
