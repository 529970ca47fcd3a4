"""A job's totals over all its attempts, for scrapers whose counters must not fall.

Totals of workers begin at zero with each attempt. `Totals` adds the attempts up, as long as the
job's process lives, and counts each complete checkpoint into a histogram.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from ..contract.messages import SubtaskNumbers
from ..drivers.status import Status

#: Upper bounds in seconds. They begin at a millisecond: overtaking barriers take that long.
BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)

#: (name without `headrace_` and `_total`, meaning, field of SubtaskNumbers, divisor).
COUNTERS = (
    ("records_in", "worked on and committed; of a source: given out", "rows_in", 1),
    ("records_out", "results of the last operator", "rows_out", 1),
    ("late_records", "too late for a window or a join", "rows_late", 1),
    ("failed_records", "failed in a function, and left out", "rows_failed", 1),
    ("busy_seconds", "a piece of work was running", "busy_ns", 1e9),
    ("backpressured_seconds", "an output queue was full", "backpressured_ns", 1e9),
    ("idle_seconds", "there was nothing to work on", "idle_ns", 1e9),
)


@dataclass(slots=True)
class Histogram:
    """Observations in seconds, counted by bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        position = sum(bound < seconds for bound in BUCKETS_S)
        self.counts[position] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, observations up to it), as Prometheus writes them."""
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


class Totals:
    """Totals of a job over all its attempts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch: int | None = None
        #: {(task, subtask): totals of attempts that are over, by position in `COUNTERS`}.
        self._before: dict[tuple[int, int], list[float]] = {}
        self._now: Mapping[tuple[int, int], SubtaskNumbers] = {}
        self._checkpoint = -1
        self.durations = Histogram()
        self.completed = 0
        self.restarts = 0
        self.last_success_s: float | None = None

    def take(self, status: Status) -> None:
        """Take in a status; each newer than the one before."""
        with self._lock:
            if status.epoch != self._epoch:
                self._close_attempt()
                self._epoch = status.epoch
            if status.numbers:
                self._now = status.numbers
            self.completed, self.restarts = status.completed, status.restarts
            for checkpoint in status.checkpoints:
                if checkpoint.checkpoint > self._checkpoint:
                    self._checkpoint = checkpoint.checkpoint
                    self.durations.observe(checkpoint.duration_ns / 1e9)
                    self.last_success_s = checkpoint.created_ms / 1e3

    def counters(self) -> dict[tuple[int, int], list[float]]:
        """Return {(task, subtask): totals by position in the table of counters}."""
        with self._lock:
            keys = sorted({*self._before, *self._now})
            return {key: self._sum(key) for key in keys}

    def _close_attempt(self) -> None:
        for key in self._now:
            self._before[key] = self._sum(key)
        self._now = {}

    def _sum(self, key: tuple[int, int]) -> list[float]:
        before = self._before.get(key) or [0.0] * len(COUNTERS)
        numbers = self._now.get(key)
        if numbers is None:
            return before
        return [
            earlier + getattr(numbers, name) / divisor
            for earlier, (_, _, name, divisor) in zip(before, COUNTERS, strict=True)
        ]
