"""What a subtask says of its replay: records read from storage, and records worked on.

Counted where the subtask reads and works, not where `Replay` remembers what is left. The two
accounts are held against each other at every checkpoint (`recovery/replays.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.channels.gate import InputChannel

from .replay import ReadOrder, ReplayInput


class ReplayCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subtask's replay of one edge, since the attempt began.

    Attributes:
        buffers: stored buffers of which every record is worked on.
        empty: stored buffers of which no record passed the filters. While buffers before them are
            left, they are left, too.
        passed: records of those that passed the filters.
        committed: records worked on, those of other buffers included.
        arrived: new records that the edge's channels have brought.
    """

    edge: int
    buffers: int
    empty: int
    passed: int
    committed: int
    arrived: int


@dataclass(slots=True)
class _Buffer:
    """A buffer that was ordered. `rows`: those to work on; None: not read yet."""

    edge: int
    rows: int | None = None
    committed: int = 0


@dataclass(slots=True)
class _Totals:
    buffers: int = 0
    empty: int = 0
    passed: int = 0
    committed: int = 0


class ReplayLedger:
    """Counts the replay of one subtask."""

    def __init__(self) -> None:
        #: {number of the order: buffer not worked on to its end}.
        self._open: dict[int, _Buffer] = {}
        self._totals: dict[int, _Totals] = {}

    def ordered(self, orders: Iterable[ReadOrder]) -> None:
        """Buffers are to be read."""
        for order in orders:
            self._open[order.number] = _Buffer(order.edge)
            self._totals.setdefault(order.edge, _Totals())

    def read(self, number: int, rows: int) -> None:
        """`rows` records of a buffer are to be worked on."""
        self._open[number].rows = rows
        self._close(number)

    def worked(self, given: ReplayInput) -> None:
        """Records were worked on."""
        buffer = self._open[given.number]
        buffer.committed += given.rows
        self._totals[buffer.edge].committed += given.rows
        self._close(given.number)

    def counts(self, channels: Iterable[InputChannel]) -> tuple[ReplayCount, ...]:
        """Return the counts by edge. `channels`: all inputs of the subtask."""
        if not self._totals:
            return ()
        arrived = dict.fromkeys(self._totals, 0)
        for one in channels:
            if one.channel.edge in arrived:
                arrived[one.channel.edge] += one.arrived
        return tuple(
            ReplayCount(edge, t.buffers, t.empty, t.passed, t.committed, arrived[edge])
            for edge, t in self._totals.items()
        )

    def _close(self, number: int) -> None:
        buffer = self._open[number]
        if buffer.rows == buffer.committed:
            del self._open[number]
            totals = self._totals[buffer.edge]
            totals.buffers += buffer.rows > 0
            totals.empty += not buffer.rows
            totals.passed += buffer.rows
