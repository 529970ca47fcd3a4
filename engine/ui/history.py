"""A job's numbers over time: a point a second of the last quarter of an hour, thinned before.

A point holds what the time lines of the page draw, and no more: a job of any size has points of
bounded size, so a page that connects late gets hours in some hundred KiB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from ..observation.observed import Observation

#: Points that are kept one by one: a quarter of an hour at one a second.
_FINE = 900
#: Older points: one in so many milliseconds, so many at most (six hours).
_COARSE_MS = 30_000
_COARSE = 720
#: A recording keeps this span (in milliseconds) in full, and one in so many of the rest.
_RECORDED_MS = 120_000
_RECORDED_STEP = 5
#: Tasks whose shares a point holds.
_TASKS_MAX = 64


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job at one moment. Shares are whole percents, by the task's index.

    Attributes:
        at_ms: since 1970.
        in_per_s: rows that sources give out; out_per_s: rows that sinks take in.
        watermark_lag_s: of the task that lags most.
        severity: of the finding at that moment.
    """

    at_ms: int
    attempt: int
    in_per_s: float
    out_per_s: float
    queued_bytes: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    watermark_lag_s: float | None
    severity: str
    busy: list[int]
    backpressured: list[int]


def point_of(look: Observation) -> Point:
    """Reduce a look to a point."""
    lags = [task.watermark_lag_s for task in look.tasks if task.watermark_lag_s is not None]
    tasks = look.tasks[:_TASKS_MAX]
    return Point(
        at_ms=look.at_ms,
        attempt=look.attempt,
        in_per_s=round(sum(task.out_per_s for task in look.tasks if task.kind == "source"), 1),
        out_per_s=round(sum(task.in_per_s for task in look.tasks if task.kind == "sink"), 1),
        queued_bytes=sum(edge.queued_bytes for edge in look.edges),
        latency_p50_ms=_rounded(look.latency_p50_ms),
        latency_p99_ms=_rounded(look.latency_p99_ms),
        watermark_lag_s=_rounded(max(lags, default=None)),
        severity=look.finding.severity,
        busy=[round(100 * task.busy) for task in tasks],
        backpressured=[round(100 * task.backpressured) for task in tasks],
    )


class History:
    """Points in the order of time, the older ones thinned. Not thread-safe: `Board` locks."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._coarse: deque[Point] = deque(maxlen=_COARSE)
        self._fine: deque[Point] = deque()
        for point in points:
            self.add(point)

    def add(self, point: Point) -> None:
        """Add a point, unless it is older than the newest one: clocks are set back."""
        if self._fine and point.at_ms <= self._fine[-1].at_ms:
            return
        self._fine.append(point)
        while len(self._fine) > _FINE:
            old = self._fine.popleft()
            if not self._coarse or old.at_ms - self._coarse[-1].at_ms >= _COARSE_MS:
                self._coarse.append(old)

    def points(self, since_ms: int = 0) -> list[Point]:
        """Return the points after `since_ms`, oldest first."""
        newer: list[Point] = []
        for point in reversed(self._fine):
            if point.at_ms <= since_ms:
                return newer[::-1]
            newer.append(point)
        newer.reverse()
        return [point for point in self._coarse if point.at_ms > since_ms] + newer

    def thinned(self) -> Sequence[Point]:
        """Return what a recording keeps."""
        points = self.points()
        if not points:
            return []
        full_from_ms = points[-1].at_ms - _RECORDED_MS
        return [
            point
            for position, point in enumerate(points)
            if point.at_ms >= full_from_ms or position % _RECORDED_STEP == 0
        ]


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)
