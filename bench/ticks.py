"""A thread that only ticks, as the owner thread of a worker would: what it misses, any other Python thread of the process misses too.

A tick that comes late has waited for the GIL, or for a processor that others had. The kernel counts the latter for each thread
(`/proc/thread-self/schedstat`), so both are told apart as far as this thread goes; that whoever held the GIL was itself without a
processor shows as held.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

_TICK_S = 0.0005
_SCHEDSTAT = "/proc/thread-self/schedstat"


@dataclass(slots=True)
class Late:
    """The longest that a tick was late: by the clock, and without the time in which this thread waited for a processor."""

    wall_s: float = 0.0
    held_s: float = 0.0

    def note(self, wall_s: float, queued_s: float) -> None:
        """One tick."""
        self.wall_s = max(self.wall_s, wall_s)
        self.held_s = max(self.held_s, wall_s - queued_s)


@dataclass(slots=True)
class Ticks:
    """Ticks while it is entered. `outside` counts except while a `marked` block runs, which `inside` counts."""

    outside: Late = field(default_factory=Late)
    inside: Late = field(default_factory=Late)
    _marked: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """Count as `inside`."""
        self._marked = True
        try:
            yield
        finally:
            self._marked = False

    def _run(self) -> None:
        before, queued_before = time.perf_counter(), _queued_s()
        was_marked = self._marked
        while not self._stopped.is_set():
            time.sleep(_TICK_S)
            queued_s, now = _queued_s(), time.perf_counter()
            is_marked = self._marked
            late = self.inside if is_marked or was_marked else self.outside
            late.note(now - before - _TICK_S, queued_s - queued_before)
            before, queued_before, was_marked = now, queued_s, is_marked


def _queued_s() -> float:
    """Seconds that this thread has waited for a processor; 0 where the kernel does not say."""
    try:
        file = os.open(_SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(file, 100).split()[1]) / 1e9
    finally:
        os.close(file)
