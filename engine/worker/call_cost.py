"""The cost of a user's function: a fixed cost per call and a cost per row, learnt from its calls.

Two calls of different sizes tell both. The estimate is the median over all pairs of the latest
calls (Theil and Sen), so a pause of the machine in one call does not mislead. Calls of equal size
leave open which part of the cost is fixed; the caller varies the size from time to time (`knows`).
Two surprises in a row mean that the cost has changed: older calls are forgotten.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

#: Calls that are remembered.
_CALLS_MAX: Final = 16
#: Calls whose rows differ by less say nothing about the cost per row.
_RATIO_MIN: Final = 1.25
#: A call that takes so many times its expected time, or that part of it, is a surprise.
_SURPRISE: Final = 2
#: A call is large enough when at most this share of its time is the fixed cost.
_FIXED_SHARE: Final = 0.1
#: A smaller share may be noise, and is not worth a call that exceeds the target.
_FIXED_SHARE_NOISE: Final = 0.2


class CallCost:
    """Learns the cost of calls.

    Attributes:
        fixed_ns: cost of a call without rows.
        row_ns: cost of each row.
        knows: the latest calls differ in size enough to tell both.
    """

    def __init__(self) -> None:
        self.fixed_ns = 0.0
        self.row_ns = 0.0
        self.knows = False
        #: (rows, nanoseconds), the newest last.
        self._calls: deque[tuple[int, int]] = deque(maxlen=_CALLS_MAX)
        #: Calls in a row that took far longer (above zero) or shorter (below) than expected.
        self._surprises = 0

    def called(self, rows: int, elapsed_ns: int) -> None:
        """A call of `rows` rows took `elapsed_ns`."""
        assert rows > 0, "a call without rows"
        self._note_surprise(rows, elapsed_ns)
        self._calls.append((rows, elapsed_ns))
        if abs(self._surprises) == 2:
            self._calls = deque(list(self._calls)[-2:], _CALLS_MAX)
            self._surprises = 0
        slopes = self._slopes()
        largest = max(n for n, _ in self._calls)
        if slopes and median(slopes) * largest < -elapsed_ns / _SURPRISE:
            # Fewer rows took far longer: the calls are not of one cost.
            self._calls = deque([(rows, elapsed_ns)], _CALLS_MAX)
            self.fixed_ns = self.row_ns = 0.0
            slopes = []
        self.knows = bool(slopes)
        if slopes:
            self.row_ns = max(0.0, median(slopes))
            self.fixed_ns = max(0.0, median(ns - self.row_ns * n for n, ns in self._calls))
        else:
            self._scale()

    def rows_within(self, target_ns: int, rows_limit: int) -> int:
        """Return the rows of a call that takes `target_ns`, and 0 if no call is so short."""
        rest_ns = target_ns - self.fixed_ns
        return _quotient(rest_ns, self.row_ns, rows_limit)

    def rows_worth_a_call(self, target_ns: int, rows_limit: int) -> int:
        """Return the rows from which on the fixed cost is a small share of a call.

        0: the fixed cost does not matter in calls of `target_ns`.
        """
        if self.fixed_ns < _FIXED_SHARE_NOISE * target_ns:
            return 0
        return _quotient(self.fixed_ns * (1 / _FIXED_SHARE - 1), self.row_ns, rows_limit)

    def _slopes(self) -> list[float]:
        """The cost per row by each pair of calls that differ enough in size."""
        return [
            (far_ns - near_ns) / (far - near)
            for near, near_ns in self._calls
            for far, far_ns in self._calls
            if far >= near * _RATIO_MIN
        ]

    def _note_surprise(self, rows: int, elapsed_ns: int) -> None:
        expected_ns = self.fixed_ns + self.row_ns * rows
        if not self._calls or expected_ns / _SURPRISE <= elapsed_ns <= expected_ns * _SURPRISE:
            self._surprises = 0
        elif elapsed_ns > expected_ns:
            self._surprises = max(0, self._surprises) + 1
        else:
            self._surprises = min(0, self._surprises) - 1

    def _scale(self) -> None:
        """Fit the last estimate to calls of one size; of first calls all cost is the rows'."""
        rows, elapsed_ns = (median(part) for part in zip(*self._calls, strict=True))
        expected_ns = self.fixed_ns + self.row_ns * rows
        if expected_ns == 0:
            self.row_ns = elapsed_ns / rows
            return
        self.fixed_ns *= elapsed_ns / expected_ns
        self.row_ns *= elapsed_ns / expected_ns


def _quotient(total_ns: float, row_ns: float, rows_limit: int) -> int:
    if total_ns <= 0:
        return 0
    return rows_limit if total_ns >= row_ns * rows_limit else int(total_ns / row_ns)
