"""The latest look at a job, shared by all who ask, and the job's events.

Whoever asks within half a second of a look gets that look. A rescale changes the plan, and with it
the observer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from ..drivers.status import Status
from .observed import Event, Observation
from .observer import Observer

#: Askers within so long of a look share it.
_SHARED_NS = 500_000_000


class Watcher:
    """Looks at a job for all threads of its process."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started_ms = time.time_ns() // 1_000_000
        #: What runs, and its observer.
        self._run: object = None
        self._observer: Observer | None = None
        self._latest: Observation | None = None
        self._looked_ns = 0

    def look(
        self, run: object, observer: Callable[[], Observer], status: Callable[[], Status]
    ) -> Observation:
        """Return a look that is at most half a second old.

        Args:
            run: what runs; another one than before has a new observer.
        """
        with self._lock:
            now_ns = self._clock()
            if run is not self._run or self._observer is None:
                self._run, self._observer, self._latest = run, observer(), None
            if self._latest is None or now_ns - self._looked_ns >= _SHARED_NS:
                look = self._observer.look(status(), now_ns, time.time_ns())
                self._latest = msgspec.structs.replace(look, started_ms=self._started_ms)
                self._looked_ns = now_ns
            return self._latest


def events_of(status: Status, since: int) -> list[Event]:
    """Return the events after number `since`, oldest first."""
    return [
        Event(number, notice.at_ms, notice.kind.value, notice.text)
        for number, notice in status.notices
        if number > since
    ]
