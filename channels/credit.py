"""Debloating: how large a channel's credit window has to be, and no larger.

A window larger than the consumer drains in a target time only adds latency, and in-flight data to
checkpoints; a smaller window makes the consumer wait. While records are waiting, the window follows
drain rate x target time. When the queue runs dry the window may hold the flow back, so the window
doubles, up to the ceiling.

Source: FLIP-183 (aim and target time). Deviation: sized per channel, in bytes, at every commit,
without a period.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_FLOORS = 4
#: Weight of the newest measurement in the rate's moving average.
_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Debloat:
    """How windows are sized: to the bytes drained in `target_ns`, never below `floor_bytes`."""

    target_ns: int
    floor_bytes: int


class Window:
    """The credit window of one channel.

    Attributes:
        size_bytes: the window now. A window starts at a few floors: a fast consumer doubles it
            within milliseconds, a slow consumer would take seconds to drain too large a first
            window.
    """

    def __init__(self, ceiling_bytes: int, debloat: Debloat | None) -> None:
        """`debloat` None: the window stays at the ceiling."""
        self._ceiling_bytes = ceiling_bytes
        self._debloat = debloat
        first_bytes = ceiling_bytes if debloat is None else _FIRST_FLOORS * debloat.floor_bytes
        self.size_bytes = min(first_bytes, ceiling_bytes)
        self._rate: float | None = None
        #: Since when records have been waiting without a break; None: they were not.
        self._since_ns: int | None = None

    def drained(self, size_bytes: int, now_ns: int, *, waiting: bool) -> None:
        """The consumer is done with `size_bytes`; `waiting`: more lie in the queue."""
        if self._debloat is None:
            return
        since_ns, self._since_ns = self._since_ns, now_ns if waiting else None
        if not waiting:
            self.size_bytes = min(self._ceiling_bytes, 2 * self.size_bytes)
        elif since_ns is not None and now_ns > since_ns:
            rate = size_bytes / (now_ns - since_ns)
            self._rate = rate if self._rate is None else (1 - _WEIGHT) * self._rate + _WEIGHT * rate
            wanted = max(self._debloat.floor_bytes, int(self._rate * self._debloat.target_ns))
            self.size_bytes = min(wanted, self._ceiling_bytes)
