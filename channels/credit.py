"""Credit: how much a consumer permits its producer to send, and no more than is of use.

A record in flight costs latency, and bytes of every unaligned checkpoint. So a *window* is as large
as keeps its consumer at work: it grows when the consumer has nothing left to do although the
producer has used up all credit, and shrinks by what has been waiting all the time. It is never
larger than what the consumer drains in a target time, unless a call of the user's function is worth
more records. The same rule sizes the queue of a producer.

All windows and queues of a worker share one budget, so that what a worker holds in flight does not
grow with the number of its channels.

Source: FLIP-183 (aim and target time); CoDel (Nichols and Jacobson 2012) for the least that waits
during a turn as the sign of a standing queue. Deviation from FLIP-183: sized per channel, in bytes,
at every commit; the target is a limit, not the aim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A window starts at so many floors.
_FIRST_FLOORS: Final = 4
#: Half of what is drained in the target time is never too much up to here: it makes large pieces.
_EASY_BYTES: Final = 64 << 10
#: Of what waits all the time a turn takes such a part away: a window that shrinks too far costs
#: throughput, one that shrinks slowly costs bytes in flight for some turns.
_SHRINK_PART: Final = 8
#: The drain rate is that of about so many target times; older measurements fade.
_MEMORY_TARGETS: Final = 4


@dataclass(frozen=True, slots=True)
class Debloat:
    """How windows are sized: up to the bytes drained in `target_ns`, never below `floor_bytes`."""

    target_ns: int
    floor_bytes: int


class Budget:
    """Bytes that the windows and queues of one worker share.

    Each starts with its share at most; what some leave of theirs goes to those that grow.

    Attributes:
        share_bytes: what each may start with.
        held_bytes: windows, queues, and credit granted beyond the window.
    """

    def __init__(self, size_bytes: int, members: int) -> None:
        self.size_bytes = size_bytes
        self.share_bytes = max(1, size_bytes // max(1, members))
        self.held_bytes = 0

    @property
    def free_bytes(self) -> int:
        """What nobody holds."""
        return max(0, self.size_bytes - self.held_bytes)


#: For ends of channels that share nothing.
_UNLIMITED: Final = 1 << 62


class Window:
    """How many bytes of one channel may wait: the window of a consumer, or the room of a producer.

    Attributes:
        size_bytes: the size now. A fast consumer doubles its first window within milliseconds, a
            slow one would take seconds to drain too large a first window.
    """

    def __init__(
        self, ceiling_bytes: int, debloat: Debloat | None, budget: Budget | None = None
    ) -> None:
        """`debloat` None: the window stays at the ceiling, or at its share of the budget."""
        self._debloat = debloat
        self._budget = Budget(_UNLIMITED, 1) if budget is None else budget
        self._ceiling_bytes = ceiling_bytes
        first_bytes = ceiling_bytes if debloat is None else _FIRST_FLOORS * debloat.floor_bytes
        self.size_bytes = min(first_bytes, ceiling_bytes, self._budget.share_bytes)
        self._outstanding_bytes = 0
        self._early_bytes = 0
        self._held_bytes = 0
        self.holds(0)
        #: Bytes drained since the turn began, and the least that waited meanwhile.
        self._turn_bytes = 0
        self._least_left: int | None = None
        #: Bytes drained in so many nanoseconds under load, older ones faded.
        self._drained_bytes = 0
        self._drained_ns = 0
        #: Since when there has been something to drain without a break; None: there was not.
        self._since_ns: int | None = None

    def holds(self, outstanding_bytes: int, early_bytes: int = 0) -> None:
        """So many bytes may come in or are there; they may be more than the window for a time.

        `early_bytes`: of these take no room of the window, which does not grow into it.
        """
        self._outstanding_bytes = outstanding_bytes
        self._early_bytes = early_bytes
        held_bytes = max(self.size_bytes, outstanding_bytes)
        self._budget.held_bytes += held_bytes - self._held_bytes
        self._held_bytes = held_bytes

    def begun(self, now_ns: int) -> None:
        """Something is being drained."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def drained(
        self, size_bytes: int, now_ns: int, *, left_bytes: int, starved: bool, least_bytes: int = 0
    ) -> None:
        """The consumer is done with `size_bytes`.

        Args:
            left_bytes: what waits behind them.
            starved: nothing is left to do, and only the window has held it back.
            least_bytes: a call of the user's function is worth so many.
        """
        if self._debloat is None:
            return
        self._measure(size_bytes, now_ns, waiting=left_bytes > 0)
        wanted_bytes = self._adapted(size_bytes, left_bytes, starved=starved)
        target_bytes = self._drained_in(self._debloat.target_ns)
        if target_bytes is not None:
            wanted_bytes = max(wanted_bytes, min(target_bytes // 2, _EASY_BYTES))
            wanted_bytes = min(wanted_bytes, max(target_bytes, least_bytes))
        floor_bytes = min(self._debloat.floor_bytes, self._budget.share_bytes)
        own_bytes = self._held_bytes - self._early_bytes
        most_bytes = min(self._ceiling_bytes, own_bytes + self._budget.free_bytes)
        self.size_bytes = max(floor_bytes, min(wanted_bytes, most_bytes))
        self.holds(self._outstanding_bytes, self._early_bytes)

    def _adapted(self, size_bytes: int, left_bytes: int, *, starved: bool) -> int:
        """The size that the last turn asks for. A turn lasts until a window has been drained."""
        before = self.size_bytes
        least_left = self._least_left
        self._least_left = left_bytes if least_left is None else min(least_left, left_bytes)
        self._turn_bytes += size_bytes
        if not starved and self._turn_bytes < before:
            return before
        standing_bytes, self._least_left, self._turn_bytes = self._least_left, None, 0
        return 2 * before if starved else before - standing_bytes // _SHRINK_PART

    def _measure(self, size_bytes: int, now_ns: int, *, waiting: bool) -> None:
        assert self._debloat is not None, "only sizes that change are measured"
        since_ns, self._since_ns = self._since_ns, now_ns if waiting else None
        if since_ns is None or now_ns <= since_ns:
            return
        self._drained_bytes += size_bytes
        self._drained_ns += now_ns - since_ns
        while self._drained_ns > _MEMORY_TARGETS * self._debloat.target_ns:
            self._drained_bytes //= 2
            self._drained_ns //= 2

    def _drained_in(self, target_ns: int) -> int | None:
        """None: no rate is known yet."""
        if not self._drained_ns:
            return None
        return self._drained_bytes * target_ns // self._drained_ns


class Credit:
    """The consumer's account of one channel. All are running totals since the attempt began.

    A producer starts without credit, so that nothing new comes in while records of a checkpoint are
    left to replay.

    Attributes:
        received_bytes, consumed_bytes: what came in, and what the consumer is done with.
        returned_bytes: credit was given back for these; more than consumed, if records that came in
            take no room of the window (`inflight/spill.py`).
        limit_bytes: what the producer may send.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.received_bytes = 0
        self.consumed_bytes = 0
        self.returned_bytes = 0
        self.limit_bytes = 0
        #: What takes no room of the window may be on disk.
        self.spills = False
        #: The producer had used up all credit before the last grant, or since.
        self._was_spent = False

    @property
    def is_spent(self) -> bool:
        """The producer may send nothing, or could not before the last grant."""
        return self._was_spent or self.received_bytes >= self.limit_bytes

    def opened(self) -> int:
        """Permit the first window; return the limit for the producer."""
        assert self.limit_bytes == 0, "opened twice"
        return self._grant(self.window.size_bytes)

    def consumed(self, size_bytes: int) -> int | None:
        """The consumer is done with `size_bytes`. Return a limit that the producer needs."""
        self.consumed_bytes += size_bytes
        self.returned_bytes = max(self.returned_bytes, self.consumed_bytes)
        return self._returned()

    def arrived(self) -> int | None:
        """All that came in takes no room of the window. Return a limit that the producer needs.

        The budget goes on counting it in memory; what spills has a bound of its own.
        """
        self.returned_bytes = self.received_bytes
        return self._returned()

    @property
    def early_bytes(self) -> int:
        """Credit was given back for so many bytes that are not consumed."""
        return self.returned_bytes - self.consumed_bytes

    def _returned(self) -> int | None:
        window_bytes = self.window.size_bytes
        limit_bytes = self.returned_bytes + window_bytes
        # Half a window at a time: small grants make small buffers, which make small grants.
        if limit_bytes - self.limit_bytes < max(1, window_bytes // 2):
            self._hold()
            return None
        return self._grant(limit_bytes)

    def extended(self) -> int | None:
        """Permit another window if all credit is used up; return the new limit for the producer.

        For a consumer that waits for more records than a window holds.
        """
        if self.limit_bytes == 0 or self.received_bytes < self.limit_bytes:
            return None
        return self._grant(self.received_bytes + self.window.size_bytes)

    def _hold(self) -> None:
        if self.spills:
            self.window.holds(self.limit_bytes - self.returned_bytes)
        else:
            self.window.holds(self.limit_bytes - self.consumed_bytes, self.early_bytes)

    def _grant(self, limit_bytes: int) -> int:
        self._was_spent = self.received_bytes >= self.limit_bytes
        self.limit_bytes = limit_bytes
        self._hold()
        return limit_bytes
