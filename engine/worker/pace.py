"""The size of the next piece of work, and how a subtask spends its time."""

from __future__ import annotations

#: The first piece is small: nobody knows yet how slow the user's function is.
_ROWS_FIRST = 64
#: From one piece to the next the size at most quadruples, so that one lucky measurement does no
#: harm.
_GROWTH_MAX = 4


class Pace:
    """Sizes work to a target time; accounts for busy, backpressured and idle time.

    Attributes:
        rows_max: rows of the next piece.
        rows_in, rows_out, rows_late, rows_failed: totals.
        busy_ns, backpressured_ns, idle_ns: totals; their sum is the time since `start`.
    """

    def __init__(self, target_ns: int, rows_limit: int) -> None:
        assert target_ns > 0, "a target of no time"
        self._target_ns = target_ns
        self._rows_limit = rows_limit
        self.rows_max = min(_ROWS_FIRST, rows_limit)
        self.rows_in = 0
        self.rows_out = 0
        self.rows_late = 0
        self.rows_failed = 0
        self.busy_ns = 0
        self.backpressured_ns = 0
        self.idle_ns = 0
        self._last_ns = 0
        self._was = "idle_ns"
        #: Bytes appended to the outputs per row taken in, lately.
        self._bytes_per_row = 0.0

    def start(self, now_ns: int) -> None:
        """Time counts from now."""
        self._last_ns = now_ns

    def rows_for(self, room_bytes: int) -> int:
        """Return the rows of a piece whose output fits in about `room_bytes`, at least 1."""
        if self._bytes_per_row == 0:
            return self.rows_max
        return max(1, min(self.rows_max, int(room_bytes / self._bytes_per_row)))

    def worked(self, rows_in: int, rows_out: int, elapsed_ns: int, bytes_out: int = 0) -> None:
        """A piece of `rows_in` rows took `elapsed_ns`, with `bytes_out` bytes of output."""
        self.rows_in += rows_in
        self.rows_out += rows_out
        if rows_in == 0:
            return
        self._bytes_per_row = (self._bytes_per_row + bytes_out / rows_in) / 2
        fitting = rows_in * self._target_ns // max(1, elapsed_ns)
        # A piece smaller than allowed says little about larger ones: never shrink because of it
        # when it was quick.
        grown = min(fitting, self.rows_max * _GROWTH_MAX)
        if rows_in < self.rows_max and elapsed_ns < self._target_ns:
            grown = max(grown, self.rows_max)
        self.rows_max = max(1, min(grown, self._rows_limit))

    def account(self, now_ns: int, *, busy: bool, backpressured: bool) -> None:
        """Book the time since the last call under the last state, and note the state."""
        passed_ns = max(0, now_ns - self._last_ns)
        setattr(self, self._was, getattr(self, self._was) + passed_ns)
        self._last_ns = max(now_ns, self._last_ns)
        self._was = "busy_ns" if busy else "backpressured_ns" if backpressured else "idle_ns"
