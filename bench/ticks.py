"""A thread that only ticks, as the owner thread of a worker would: what it misses, any other Python
thread of the process misses too.

A thread that stands still waits for the GIL (or a lock), or for a processor that others have. The
kernel counts the latter for each thread (`/proc/thread-self/schedstat`), so both are told apart as
far as this thread goes; that whoever held the GIL was itself without a processor shows as held. Who
held it is told in part: the collector's pauses, in which no other thread runs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

_TICK_S = 0.0005
_SCHEDSTAT = "/proc/thread-self/schedstat"


@dataclass(slots=True)
class Longest:
    """Of many steps the longest by the clock, in processor time, and of what was neither: waiting
    for a processor, and for the GIL.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    held_s: float = 0.0

    def note(self, wall_s: float, cpu_s: float, queued_s: float) -> None:
        """One step."""
        self.wall_s = max(self.wall_s, wall_s)
        self.cpu_s = max(self.cpu_s, cpu_s)
        self.queued_s = max(self.queued_s, queued_s)
        self.held_s = max(self.held_s, wall_s - cpu_s - queued_s)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Note what the block takes."""
        began = Now.read()
        try:
            yield
        finally:
            ended = Now.read()
            self.note(
                ended.wall_s - began.wall_s,
                ended.cpu_s - began.cpu_s,
                ended.queued_s - began.queued_s,
            )

    def told(self, name: str) -> dict[str, float]:
        """In milliseconds: `NAME_max_ms`, and by what it waited for."""
        return {
            f"{name}_max_ms": round(1000 * self.wall_s, 3),
            f"{name}_queued_max_ms": round(1000 * self.queued_s, 3),
            f"{name}_held_max_ms": round(1000 * self.held_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Now:
    """Of this thread: the clock, its processor time, and how long it has waited for a processor; 0
    where the kernel does not say.
    """

    wall_s: float
    cpu_s: float
    queued_s: float

    @classmethod
    def read(cls) -> Self:
        """Ask."""
        queued_s = _queued_s()
        return cls(time.perf_counter(), time.thread_time(), queued_s)


@dataclass(slots=True)
class Ticks:
    """Ticks while it is entered. `outside` counts except while a `marked` block runs, which
    `inside` counts.

    `pause_s` is the longest pause of the collector in a marked block.
    """

    outside: Longest = field(default_factory=Longest)
    inside: Longest = field(default_factory=Longest)
    pause_s: float = 0.0
    _paused_at: float = 0.0
    _marked: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        gc.callbacks.append(self._collects)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        gc.callbacks.remove(self._collects)
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
        before, was_marked = Now.read(), self._marked
        while not self._stopped.is_set():
            time.sleep(_TICK_S)
            now, is_marked = Now.read(), self._marked
            late = self.inside if is_marked or was_marked else self.outside
            late.note(
                now.wall_s - before.wall_s - _TICK_S,
                now.cpu_s - before.cpu_s,
                now.queued_s - before.queued_s,
            )
            before, was_marked = now, is_marked

    def _collects(self, phase: str, _: object) -> None:
        if phase == "start":
            self._paused_at = time.perf_counter()
        elif self._marked:
            self.pause_s = max(self.pause_s, time.perf_counter() - self._paused_at)


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
