"""Windows and joins in simulated jobs: the product's operators over the event time of
`event_time.py`.

A record tells the content of each window. A join emits a record for each pair, and for each record
without partner. So the sinks show a window, pair or record that is lost, doubled or forgotten too
early. `timed_reference.py` computes the expected records.

With late records the run decides the content of each window. But no window fires twice, and each
record is in a window or late: `Late` tells the content of each window, and each late record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...contract.operators import Advanced
from ...operators import aggregations
from ...operators.join import Interval, JoinOperator
from ...operators.join_input import JoinInput
from ...operators.session import SessionOperator
from ...operators.session_join import SessionJoinOperator
from ...operators.stateless import StatelessOperator
from ...operators.window import TimeWindowOperator
from ...operators.window_output import window_schema
from ...operators.window_store import WindowAggregate
from ...operators.windows import SessionWindow, TimeWindow
from .event_time import BUCKET_NS, time_of, told_of
from .source import SCHEMA

_TIME: Final = pa.field("time", pa.timestamp("ns"))
TIMED_SCHEMA: Final = SCHEMA.append(_TIME)
_SUMS: Final = {"n": aggregations.count(), "total": aggregations.sum("id")}
_WINDOWS: Final = window_schema(["key"], "time", _SUMS, TIMED_SCHEMA)
_SPEC: Final = WindowAggregate(["key"], "time", 0, _SUMS, TIMED_SCHEMA, _WINDOWS)
_SIDE: Final = JoinInput(("key",), "time", TIMED_SCHEMA)

TUMBLING: Final = TimeWindow(BUCKET_NS, BUCKET_NS)
SLIDING: Final = TimeWindow(105, 35)
#: Odd, and times are even: the run would decide on sessions that are exactly a gap apart.
GAP_NS: Final = 25
#: Records of a key that are at most this far apart are joined.
DISTANCE_NS: Final = 40

#: Every third record of `Late` is this much older than its id says, beyond the watermarks' delay.
_LAG_NS: Final = 220
#: Ids of `Late`: the sum of ids times this, plus the number of the window; 0: a late record.
LATE_STEP: Final = 1 << 10
#: Windows are numbered from well before the windows of the earliest records.
_FIRST_WINDOW: Final = 16


def timed(batch: pa.RecordBatch, times: Any = None) -> pa.RecordBatch:
    times = time_of(batch.column(0).to_numpy()) if times is None else times
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(times).view(_TIME.type)], schema=TIMED_SCHEMA
    )


def record(ids: Any, keys: pa.Array, nth: Any = None) -> pa.RecordBatch:
    zeros = pa.array(np.zeros(len(keys), np.int64))
    nth = zeros if nth is None else pa.array(nth)
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), keys, zeros, zeros, nth, zeros], schema=SCHEMA
    )


def _ends(windows: pa.RecordBatch) -> Any:
    return windows.column("window_end").view(pa.int64()).to_numpy()


class Windows(TimeWindowOperator):
    """Counts and sums the ids of each key by window."""

    def __init__(self, window: TimeWindow, name: str) -> None:
        super().__init__(window, _SPEC, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in records with their times."""
        return super().process(timed(batch), port)


class Sessions(SessionOperator):
    """Counts and sums the ids of each key by session."""

    def __init__(self, name: str) -> None:
        super().__init__(SessionWindow(GAP_NS), _SPEC, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in records with their times."""
        return super().process(timed(batch), port)


class WindowsTold(StatelessOperator):
    """Makes records of windows."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Make a record per window that tells the content."""
        counts, totals = batch.column("n").to_numpy(), batch.column("total").to_numpy()
        yield record(told_of(counts, totals, _ends(batch) - 1), batch.column("key"))


class Late(TimeWindowOperator):
    """Windows over partly late records, and the late records."""

    def __init__(self, name: str) -> None:
        super().__init__(TUMBLING, _SPEC, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Take in records; tell late records."""
        ids = batch.column(0).to_numpy()
        yield from self._told(
            super().process(timed(batch, time_of(ids) - _LAG_NS * (ids % 3 == 0)), port)
        )
        for late in super().take_late():
            ids = late.column(0).to_numpy()
            yield record(ids * LATE_STEP, late.column("key"), np.ones(len(ids), np.int64))

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Tell the closed windows."""
        fired = super().advance(watermark_ns, rows_max)
        return Advanced(list(self._told(fired.batches)), fired.done)

    def take_late(self) -> Sequence[pa.RecordBatch]:
        """`process` has told the late records."""
        return ()

    def _told(self, windows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in windows:
            number = _ends(batch) // BUCKET_NS + _FIRST_WINDOW
            ids = batch.column("total").to_numpy() * LATE_STEP + number
            yield record(ids, batch.column("key"), batch.column("n"))


class Joined(JoinOperator):
    """Joins the first input with the others, and tells unmatched records."""

    def __init__(self, match: Interval | TimeWindow, name: str) -> None:
        super().__init__(_SIDE, _SIDE, match, "full", 1, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Take in records with their times."""
        return super().process(timed(batch), port)


class SessionJoined(SessionJoinOperator):
    """Joins the first input with the others by sessions, and tells unmatched records."""

    def __init__(self, name: str) -> None:
        super().__init__(_SIDE, _SIDE, SessionWindow(GAP_NS), "full", 1, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Take in records with their times."""
        return super().process(timed(batch), port)


class PairsTold(StatelessOperator):
    """Makes records of pairs."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Make a record per pair that tells both ids."""
        ids = (pc.fill_null(batch.column(name), -1).to_numpy() for name in ("id", "id_right"))
        yield record(pair_of(*ids), batch.column("key"))


def pair_of(left: Any, right: Any) -> Any:
    """The id of the record that tells a pair; -1 for a missing partner."""
    return (left + 1) * 1_000_003 + right + 1
