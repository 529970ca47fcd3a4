"""The size of the next piece of work, and how a subtask spends its time.

A piece aims at a target time, so that timers, aligned barriers and neighbours get their turn. A
function with a high fixed cost per call gets larger pieces than that, since smaller ones would
spend their time on the fixed cost: an unaligned cut does not wait for the running call. Every few
pieces one is larger or smaller than the rest, so that a wrong estimate of the cost heals.
"""

from __future__ import annotations

from typing import Final

from .call_cost import CallCost

#: The first piece is small: nobody knows yet how slow the user's function is.
_ROWS_FIRST: Final = 64
#: From one piece to the next the size at most quadruples, so that one lucky measurement does no
#: harm.
_GROWTH_MAX: Final = 4
#: Handing over a piece of work costs a good part of this time.
_QUICK_NS: Final = 500_000
#: One piece in so many is twice as large as the others, or half as large.
_PROBE_EVERY: Final = 8
#: Where a fixed cost has made the pieces large, that one is so many times smaller: in large pieces
#: noise looks like a fixed cost, and would keep them large.
_PROBE_DOWN: Final = 8
#: Sizes that differ by less teach nothing about the cost of a row.
_CHANGE_MIN: Final = 1.25
#: Output of a piece that is larger than the target time asks for; soft.
_OUTPUT_BYTES_MAX: Final = 64 << 20
#: Less output per row taken in is none.
_BYTES_PER_ROW_MIN: Final = 1e-6


class Pace:
    """Sizes work to a target time; accounts for busy, backpressured and idle time.

    Attributes:
        rows_max: rows of the next piece.
        rows_quick: rows that take so little time that a smaller piece is all overhead.
        rows_worth: the fixed cost of a call is not worth fewer; 0: it does not matter.
        rows_in, rows_out, rows_late, rows_failed: totals.
        busy_ns, backpressured_ns, idle_ns: totals; their sum is the time from `start` to the last
            `book` or `account`.
    """

    def __init__(self, target_ns: int, rows_limit: int) -> None:
        assert target_ns > 0, "a target of no time"
        self._target_ns = target_ns
        self._rows_limit = rows_limit
        self._cost = CallCost()
        self.rows_max = min(_ROWS_FIRST, rows_limit)
        #: The size without probes.
        self._rows = self.rows_max
        self.rows_worth = 0
        self.rows_quick = 0
        #: Pieces since the last probe, and whether the next probe is a larger piece.
        self._since_probe = 0
        self._probes_up = True
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
        """Return the rows of a piece whose output fits in about `room_bytes`, at least 1.

        A piece that is worth its fixed cost may emit more.
        """
        if self._bytes_per_row == 0:
            return self.rows_max
        fitting = int(room_bytes / self._bytes_per_row)
        least = min(self.rows_worth, int(_OUTPUT_BYTES_MAX / self._bytes_per_row))
        return max(1, min(self.rows_max, max(fitting, least)))

    def worked(self, rows_in: int, rows_out: int, elapsed_ns: int, bytes_out: int = 0) -> None:
        """A piece of `rows_in` rows took `elapsed_ns`, with `bytes_out` bytes of output."""
        self.rows_in += rows_in
        self.rows_out += rows_out
        if rows_in == 0:
            return
        per_row = (self._bytes_per_row + bytes_out / rows_in) / 2
        # Halved for ever, it would divide to infinity: a filter may let nothing through any more.
        self._bytes_per_row = per_row if per_row > _BYTES_PER_ROW_MIN else 0.0
        quick = min(self._rows_limit, _QUICK_NS * rows_in // max(1, elapsed_ns))
        self.rows_quick = (self.rows_quick + quick) // 2
        # A quick piece that was not held small by its size says nothing about larger ones.
        held_small = rows_in >= self.rows_max and self.rows_max < self._rows_limit
        if held_small or elapsed_ns >= self._target_ns:
            self._learn(rows_in, elapsed_ns)

    def _learn(self, rows: int, elapsed_ns: int) -> None:
        cost, target_ns, limit = self._cost, self._target_ns, self._rows_limit
        cost.called(rows, elapsed_ns)
        self.rows_worth = cost.rows_worth_a_call(target_ns, limit)
        wanted = max(1, cost.rows_within(target_ns, limit), self.rows_worth)
        largest = min(self.rows_max * _GROWTH_MAX, limit)
        before, self._rows = self._rows, min(wanted, largest)
        self._since_probe += 1
        steady = before / _CHANGE_MIN < self._rows < before * _CHANGE_MIN
        if steady and (not cost.knows or self._since_probe >= _PROBE_EVERY):
            self.rows_max = min(self._probe(), largest)
        else:
            self.rows_max = self._rows

    def _probe(self) -> int:
        """Return the size of a piece that shall teach the cost of a row."""
        self._since_probe = 0
        if _PROBE_DOWN < self.rows_worth < self._rows_limit:
            return self._rows // _PROBE_DOWN
        up = self._rows == 1 or (self._probes_up and self._rows * 2 <= self._rows_limit)
        self._probes_up = not up
        return self._rows * 2 if up else self._rows // 2

    def book(self, now_ns: int) -> None:
        """Book the time since the last call under the present state."""
        passed_ns = max(0, now_ns - self._last_ns)
        setattr(self, self._was, getattr(self, self._was) + passed_ns)
        self._last_ns = max(now_ns, self._last_ns)

    def account(self, now_ns: int, *, busy: bool, backpressured: bool) -> None:
        """Book the time since the last call under the last state, and note the state."""
        self.book(now_ns)
        self._was = "busy_ns" if busy else "backpressured_ns" if backpressured else "idle_ns"
