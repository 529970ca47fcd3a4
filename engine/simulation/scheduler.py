"""The seeded scheduler: a virtual clock, an ordered queue, a source of randomness, a trace.

Every event in a simulated world is an action that falls due at a virtual time. Actions due at equal
times run in the order in which they were scheduled, and all delays come from `rng`, so one seed is
one run, bit for bit. `trace` hashes a line for each event; runs that differ anywhere differ in
their hash.

Source: FoundationDB's and TigerBeetle's simulators (the idea, not the code).
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

Action = Callable[[], None]


class Scheduler:
    """Virtual time and the queue of what is to happen.

    Attributes:
        rng: the only source of randomness of the run.
        now_ns: virtual time, from 0; never goes back.
        steps: actions run so far.
    """

    def __init__(self, seed: int, *, show: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 0
        self.steps = 0
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)
        self._scheduled = 0
        self._queue: list[tuple[int, int, Action]] = []

    def after(self, delay_ns: int, action: Action) -> None:
        """Run `action` in `delay_ns` (0 or more)."""
        self.at(self.now_ns + delay_ns, action)

    def at(self, due_ns: int, action: Action) -> None:
        """Run `action` at virtual time `due_ns`; a past time means now."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(due_ns, self.now_ns), self._scheduled, action))

    def delay_ns(self, low_ns: int, high_ns: int) -> int:
        """Draw a delay: mostly near `low_ns`, now and then up to `high_ns`."""
        draw = self.rng.random()
        return low_ns + int((high_ns - low_ns) * draw * draw * draw)

    def step(self) -> bool:
        """Run the next action. False: there is none."""
        if not self._queue:
            return False
        self.now_ns, _, action = heapq.heappop(self._queue)
        self.steps += 1
        action()
        return True

    def trace(self, line: str) -> None:
        """Hash an event's line."""
        self._hash.update(f"{self.now_ns} {line}\n".encode())
        if self._show is not None:
            self._show(f"{self.now_ns / MILLISECOND_NS:12.3f} {line}")

    @property
    def traced(self) -> bool:
        """The trace has a reader, so longer lines are worth making."""
        return self._show is not None

    @property
    def trace_hash(self) -> str:
        """Hash of all events so far, in hex."""
        return self._hash.hexdigest()
