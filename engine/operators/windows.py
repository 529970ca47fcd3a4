"""Windows over event time, as values of a pipeline, and the assignment of records to windows.

A window is [start, end) in nanoseconds since 1970; starts of tumbling and sliding windows are
multiples of the step, also before 1970. A window is closed by the first watermark that reaches its
last nanosecond, end - 1: a watermark says that no record up to its time, inclusive, is to be
expected.

Source: Flink's `TumblingEventTimeWindows`, `SlidingEventTimeWindows` and `EventTimeSessionWindows`;
deviation: no offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contract.errors import UserCodeError, UserError
from ..contract.units import Duration, duration_ns

#: Nanoseconds since 1970.
Times = npt.NDArray[np.int64]

#: A record that lies in more windows than this costs more than anybody wants.
OVERLAP_MAX = 1000
#: Times further from 1970 (by 146 years) and longer durations (than 36 years) are refused, so that
#: their sums stay within int64.
TIME_MAX_NS = 1 << 62
DURATION_MAX_NS = 1 << 60

_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Windows of `size_ns` that begin every `every_ns` <= `size_ns`.

    If both are equal, each record is in exactly one window.
    """

    size_ns: int
    every_ns: int

    def starts(self, times: Times) -> tuple[npt.NDArray[np.int64] | None, Times]:
        """Find the windows of each record.

        Returns (record of each window, start of each window); None: one window per record, in
        order.
        """
        newest = times - times % self.every_ns
        if self.size_ns == self.every_ns:
            return None, newest
        overlap = -(-self.size_ns // self.every_ns)
        rows = np.repeat(np.arange(len(times)), overlap)
        back = np.tile(np.arange(overlap) * self.every_ns, len(times))
        starts = newest[rows] - back
        within = times[rows] - starts < self.size_ns
        return rows[within], starts[within]


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Windows of a key's activity: each record's window reaches `gap_ns` beyond the record.

    Windows that meet merge.
    """

    gap_ns: int


Window = TimeWindow | SessionWindow


def tumbling(size: Duration) -> TimeWindow:
    """Windows side by side: `tumbling("1m")` makes a window for every minute."""
    size_ns = _positive(size, "tumbling: size")
    return TimeWindow(size_ns, size_ns)


def sliding(size: Duration, *, every: Duration) -> TimeWindow:
    """Windows that overlap.

    `sliding("1m", every="10s")` makes a window of one minute every ten seconds.
    """
    size_ns, every_ns = _positive(size, "sliding: size"), _positive(every, "sliding: every")
    if every_ns > size_ns:
        raise UserError(
            f"sliding: every={every!r} is longer than the window of {size!r}, so records in"
            " between would be in no "
            "window; make every at most the size, or filter before"
        )
    if -(-size_ns // every_ns) > OVERLAP_MAX:
        raise UserError(
            f"sliding: each record would be in {-(-size_ns // every_ns)} windows, at most"
            f" {OVERLAP_MAX} are possible; "
            "make every longer"
        )
    return TimeWindow(size_ns, every_ns)


def session(gap: Duration) -> SessionWindow:
    """Windows of activity: a window ends when its key has had no record for `gap`."""
    return SessionWindow(_positive(gap, "session: gap"))


def times_of(batch: pa.RecordBatch, column: str, operator: str) -> Times:
    """Return the event times of a batch.

    Raises: UserCodeError for a null, or a time out of range.
    """
    array = batch.column(column)
    if array.null_count:
        raise UserCodeError(
            operator,
            f"a record has no time in column {column!r}; filter nulls out before the window",
        )
    unit_ns = _UNIT_NS[array.type.unit]
    times: Times = array.view(pa.int64()).to_numpy()
    if len(times) and max(int(times.max()), -int(times.min())) > TIME_MAX_NS // unit_ns:
        raise UserCodeError(
            operator,
            f"a time in column {column!r} is more than 146 years from 1970; filter such records"
            " out",
        )
    return times * unit_ns if unit_ns > 1 else times


def from_times(times: Times, type_: pa.DataType) -> pa.Array:
    """Make the timestamp column of `type_`; the times are whole in the unit of `type_`."""
    return pa.array(times // _UNIT_NS[type_.unit], pa.int64()).view(type_)


def check_durations(type_: pa.DataType, *durations_ns: int, where: str) -> None:
    """Refuse durations that the unit of an event-time column cannot express. Raises: UserError."""
    unit_ns = _UNIT_NS[type_.unit]
    for duration in durations_ns:
        if duration % unit_ns:
            raise UserError(
                f"{where}: windows of {duration} ns cannot be written as {type_}; cast the"
                " event-time column to a finer "
                "unit, or make the windows longer"
            )


def bounded_ns(value: Duration, option: str) -> int:
    """Parse a duration that may be 0. Raises: UserError."""
    found = duration_ns(value, option=option)
    if found > DURATION_MAX_NS:
        raise UserError(f"{option}={value!r} is longer than 36 years; make it shorter")
    return found


def _positive(value: Duration, option: str) -> int:
    found = bounded_ns(value, option)
    if found == 0:
        raise UserError(f"{option}={value!r} is no time at all; write a duration such as '1m'")
    return found
