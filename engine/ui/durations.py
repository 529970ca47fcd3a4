"""How long checkpoints took, as a histogram: each complete checkpoint counts once."""

from __future__ import annotations

import threading
from itertools import accumulate

from ..drivers.status import Status

#: Upper bounds in seconds. They begin at a millisecond: overtaking barriers take that long.
BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Durations:
    """Durations of a job's checkpoints since its process began. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = -1
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def take(self, status: Status) -> None:
        """Count the checkpoints that are new in a status."""
        with self._lock:
            for checkpoint in status.checkpoints:
                if checkpoint.checkpoint > self._newest:
                    self._newest = checkpoint.checkpoint
                    self._count(checkpoint.duration_ns / 1e9)

    def histogram(self) -> tuple[list[tuple[str, float]], float]:
        """Return [(upper bound, checkpoints up to it)] as Prometheus writes them, and the sum in
        seconds.
        """
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        with self._lock:
            return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum_s

    def _count(self, seconds: float) -> None:
        self._counts[sum(bound < seconds for bound in BUCKETS_S)] += 1
        self._sum_s += seconds
