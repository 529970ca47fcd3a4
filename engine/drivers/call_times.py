"""The time that a subtask's thread spends in each operator of its chain.

The chain tells of every call, and of the return from a call behind it, so the time until the next
word belongs to the operator that was told last.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CallTimes:
    """Times of one subtask. `tell` and `take` belong to its thread; `current` to any.

    Args:
        record: notes for other processes which operator is called, by its place; None: none.

    Attributes:
        isolated: places of operators whose calls run in processes of their own.
        current: place of the operator that is called now; None: none is.
    """

    def __init__(
        self,
        record: Callable[[int | None], None] = lambda operator: None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._record = record
        self._clock = clock
        self.isolated: frozenset[int] = frozenset()
        self.current: int | None = None
        self._since_ns = 0
        self._spent_ns: dict[int, int] = {}

    def tell(self, operator: int | None) -> None:
        """The thread calls an operator, by its place; None: it calls none any more."""
        now_ns = self._clock()
        before = self.current
        if before is not None:
            spent_ns = now_ns - self._since_ns
            self._spent_ns[before] = self._spent_ns.get(before, 0) + spent_ns
        self.current, self._since_ns = operator, now_ns
        # A call in another process holds no GIL of this one.
        self._record(None if operator in self.isolated else operator)

    def take(self) -> tuple[tuple[int, int], ...]:
        """Return (place, time in nanoseconds) of the operators called since the last time."""
        taken = tuple(self._spent_ns.items())
        self._spent_ns.clear()
        return taken
