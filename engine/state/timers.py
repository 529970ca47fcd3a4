"""Timers, in event time and in processing time: per key, the times at which its function wants to
be called.

Timers are keyed state: a dictionary of committed immutable tuples, with the writes of the running
work aside; a snapshot copies the dictionary. Timers stay in memory on every backend, because every
call asks for the next timer.

Beside the dictionary is a heap of (time, key), which finds due timers. The heap belongs to the
subtask's thread, is neither committed nor stored, and may name deleted timers: an entry counts only
if its timer is still set. A restore makes a new heap.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.errors import UserError
from ..contract.units import Duration, duration_ns
from .keyed import CurrentKey
from .tables import table_of_items
from .types import Key

#: Names of the timers among an operator's states. Format, never change.
TIMERS: Final = "timers"
PROCESSING_TIMERS: Final = "processing_timers"
_TIME: Final = pa.field("time_ns", pa.int64(), nullable=False)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TimerQueue:
    """The timers of all keys of one operator instance."""

    def __init__(self) -> None:
        #: {key: its times, ascending}; keys without timers are absent.
        self._committed: dict[Key, tuple[int, ...]] = {}
        #: Likewise for the keys touched by the running work; an empty tuple: no timers left.
        self._written: dict[Key, tuple[int, ...]] = {}
        self._heap: list[tuple[int, tuple[Any, ...], Key]] = []
        self._closed = False

    def of(self, key: Key) -> tuple[int, ...]:
        """Return the times of a key, ascending."""
        found = self._written.get(key)
        return self._committed.get(key, ()) if found is None else found

    def add(self, key: Key, time_ns: int) -> None:
        """Set a timer; no effect if already set."""
        times = self.of(key)
        if self._closed or time_ns in times:
            return
        self._written[key] = tuple(sorted((*times, time_ns)))
        heapq.heappush(self._heap, (time_ns, _order(key), key))

    def remove(self, key: Key, time_ns: int) -> None:
        """Delete a timer, if set."""
        times = self.of(key)
        if time_ns in times:
            self._written[key] = tuple(time for time in times if time != time_ns)

    def pop(self, watermark_ns: int) -> tuple[Key, int] | None:
        """Remove and return the first timer due at `watermark_ns`, by time and then by key; None:
        no timer.
        """
        while self._heap and self._heap[0][0] <= watermark_ns:
            time_ns, _, key = heapq.heappop(self._heap)
            if time_ns in self.of(key):
                self.remove(key, time_ns)
                return key, time_ns
        return None

    def next_ns(self) -> int | None:
        """The time of the first timer; None: none is set."""
        while self._heap and self._heap[0][0] not in self.of(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def close(self) -> None:
        """End time: all set timers fire, and no new timers are set."""
        self._closed = True

    def commit(self) -> None:
        """Merge the ended work's writes. Owner thread."""
        for key, times in self._written.items():
            if times:
                self._committed[key] = times
            else:
                self._committed.pop(key, None)
        self._written = {}

    def load(self, keys: Iterable[Key], times: Iterable[int]) -> None:
        """Take restored timers, as committed timers."""
        for key, time_ns in zip(keys, times, strict=True):
            self._committed[key] = tuple(sorted((*self._committed.get(key, ()), time_ns)))
            heapq.heappush(self._heap, (time_ns, _order(key), key))

    def freeze(self, keys: Sequence[pa.Field], max_parallelism: int) -> Callable[[], pa.Table]:
        """Copy the committed dictionary; the result makes the table.

        Owner thread, also while work runs.
        """
        frozen, schema = self._committed.copy(), timers_schema(keys)

        def table() -> pa.Table:
            items = ((key, time) for key, times in frozen.items() for time in times)
            return table_of_items(items, schema, max_parallelism)

        return table


class Timers:
    """The event-time timers of the current record's, or timer's, key.

    Times are datetimes (naive times are UTC) or integers, nanoseconds since 1970.
    """

    _called = "on_timer"

    def __init__(self, queue: TimerQueue, current: CurrentKey, *, fires: bool) -> None:
        """`fires`: there is an `on_timer` to be called."""
        self._queue = queue
        self._current = current
        self._fires = fires

    def set(self, time: datetime | int) -> None:
        """Call `on_timer` when event time reaches `time`.

        A past time fires at the watermark's next rise. Setting a time twice makes one timer. At the
        end of input all timers fire; timers set then are dropped, so that a timer that sets the
        next timer comes to an end.
        """
        self._add(to_ns(time))

    def delete(self, time: datetime | int) -> None:
        """Delete a timer, if set."""
        self._queue.remove(self._current.key, to_ns(time))

    def __iter__(self) -> Iterator[int]:
        """Iterate over the set times, in nanoseconds since 1970, ascending."""
        return iter(self._queue.of(self._current.key))

    def __len__(self) -> int:
        return len(self._queue.of(self._current.key))

    def _add(self, time_ns: int) -> None:
        if not self._fires:
            raise UserError(
                f"a timer is set, but the processor has no {self._called}(key, time_ns) to be"
                " called"
            )
        self._queue.add(self._current.key, time_ns)


class ProcessingTimers(Timers):
    """The processing-time timers of the current key: they fire by the clock of the working
    process.
    """

    _called = "on_processing_timer"

    @property
    def now_ns(self) -> int:
        """The time at the beginning of this piece of work, in nanoseconds since 1970; never goes
        back while a process runs.
        """
        return self._current.clock_ns

    def set(self, time: datetime | int) -> None:
        """Call `on_processing_timer` when the clock reaches `time`.

        A past time fires soon, also after a restore. Setting a time twice makes one timer. At the
        end of input all timers fire, and timers set then are dropped.
        """
        self._add(to_ns(time))

    def set_after(self, delay: Duration) -> None:
        """Call `on_processing_timer` after `delay`: "5s", seconds, or a timedelta."""
        self._add(self.now_ns + duration_ns(delay, option="set_after"))


def timers_schema(keys: Sequence[pa.Field]) -> pa.Schema:
    """The columns of stored timers: the key's, and the time."""
    return pa.schema([*keys, _TIME])


def to_ns(time: datetime | int) -> int:
    """Read a time. Raises: UserError."""
    if isinstance(time, datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        since = aware - _EPOCH
        # pandas makes a datetime subclass with nanoseconds.
        more_ns = int(getattr(time, "nanosecond", 0))
        time = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000 + more_ns
    if isinstance(time, bool) or not isinstance(time, int):
        raise UserError(f"a timer takes a datetime or nanoseconds since 1970, got {time!r}")
    if not MIN_WATERMARK < time <= MAX_WATERMARK:
        raise UserError(f"a timer at {time} ns is beyond what 64 bits hold")
    return time


def _order(key: Key) -> tuple[Any, ...]:
    """Order keys of one type, nulls and NaN last."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple((2, 0) if p is None else (1, 0) if _is_nan(p) else (0, p) for p in parts)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
