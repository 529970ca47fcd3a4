"""Transformers between the time domains of an edge's two ends.

`fixed` is the paper's φ: the times at the receiver that no event outside a frontier of the sender
can produce any more. `reached` is the smallest frontier with all messages that events inside the
frontier produced: the discarded messages of a sender that logs nothing. They differ where many
times become one: leaving a loop, a message of `(3, 5)` is sent at 3 while epoch 3 is not fixed.
`within` undoes `reached`: the greatest frontier whose messages stay within another.

A system of sequence numbers needs none of them: there φ is what a checkpoint says had been sent.

Source: Isard and Abadi, "Falkirk Wheel", 3.2 and Figure 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from .frontier import ALL_TIMES, EVERYTHING, NO_TIME, Bound, Frontier


class Transformer(Protocol):
    """Translates frontiers along an edge; all three are monotonic."""

    def fixed(self, frontier: Frontier) -> Frontier:
        """Return the receiver's times that only events in `frontier` can produce."""
        ...

    def reached(self, frontier: Frontier) -> Frontier:
        """Return the smallest frontier with all messages of events in `frontier`."""
        ...

    def within(self, frontier: Frontier) -> Frontier:
        """Return the greatest frontier that reaches nothing beyond the receiver's `frontier`."""
        ...


@dataclass(frozen=True, slots=True)
class Same:
    """Both ends have the same times: a message bears the time of its cause."""

    def fixed(self, frontier: Frontier) -> Frontier:
        """Return the frontier."""
        return frontier

    def reached(self, frontier: Frontier) -> Frontier:
        """Return the frontier."""
        return frontier

    def within(self, frontier: Frontier) -> Frontier:
        """Return the frontier."""
        return frontier


@dataclass(frozen=True, slots=True)
class Enter:
    """Into a loop: a message of `t` is sent at `(t, 0)`. `depth`: parts of a time outside."""

    depth: int = 1

    def fixed(self, frontier: Frontier) -> Frontier:
        """Return every round of the times in the frontier."""
        return Frontier({None: frontier.bound(None)})

    def reached(self, frontier: Frontier) -> Frontier:
        """Return round 0 of the last time, and every round of the times before."""
        bound = frontier.bound(None)
        if len(bound) < self.depth or bound == ALL_TIMES:
            return Frontier({None: bound})
        return Frontier({None: (*bound[:-1], bound[-1] - 1, 1)})

    def within(self, frontier: Frontier) -> Frontier:
        """Return the times whose round 0 is in the frontier."""
        bound = frontier.bound(None)
        if len(bound) <= self.depth:
            return Frontier({None: bound})
        return Frontier({None: _after(bound[: self.depth])})


@dataclass(frozen=True, slots=True)
class Again:
    """Round a loop: a message of `(t, c)` is sent at `(t, c + 1)`. `depth`: parts of a time."""

    depth: int = 2

    def fixed(self, frontier: Frontier) -> Frontier:
        """Return the frontier and one round more."""
        bound = frontier.bound(None)
        if bound == ALL_TIMES:
            return Frontier({None: bound})
        return Frontier({None: _after(_padded(bound, self.depth))})

    def reached(self, frontier: Frontier) -> Frontier:
        """Return the next round of the last time, and all before."""
        bound = frontier.bound(None)
        return Frontier({None: _after(bound) if len(bound) == self.depth else bound})

    def within(self, frontier: Frontier) -> Frontier:
        """Return the times whose next round is in the frontier."""
        bound = frontier.bound(None)
        if len(bound) < self.depth:
            return Frontier({None: bound})
        return Frontier({None: (*bound[:-1], bound[-1] - 1)})


@dataclass(frozen=True, slots=True)
class Leave:
    """Out of a loop: a message of `(t, c)` is sent at `t`. `depth`: parts of a time inside."""

    depth: int = 2

    def fixed(self, frontier: Frontier) -> Frontier:
        """Return the times whose every round is in the frontier."""
        return Frontier({None: frontier.bound(None)[: self.depth - 1]})

    def reached(self, frontier: Frontier) -> Frontier:
        """Return the times of which some round is in the frontier."""
        bound = frontier.bound(None)
        return Frontier({None: bound if len(bound) < self.depth else _after(bound[:-1])})

    def within(self, frontier: Frontier) -> Frontier:
        """Return every round of the times in the frontier."""
        return Frontier({None: frontier.bound(None)})


@dataclass(frozen=True, slots=True)
class Numbered:
    """From epochs to the sequence numbers of `edge`, for a sender that buffers: all messages of an
    epoch leave before the first of the next. `totals`: messages by epoch, so far.
    """

    edge: str
    totals: Sequence[int]

    def fixed(self, frontier: Frontier) -> Frontier:
        """Return the messages of the epochs in the frontier."""
        if frontier == EVERYTHING:
            return EVERYTHING
        return self.reached(frontier)

    def reached(self, frontier: Frontier) -> Frontier:
        """Return the messages of the epochs in the frontier, as far as they were sent."""
        epochs = (*frontier.bound(None), 0)[0]
        sent = sum(total for epoch, total in enumerate(self.totals) if epoch < epochs)
        return Frontier.sequences({self.edge: sent})

    def within(self, frontier: Frontier) -> Frontier:
        """Return the epochs whose messages are in the frontier."""
        sent = list(accumulate(self.totals))
        whole = sum((total,) <= frontier.bound(self.edge) or not total for total in sent)
        return EVERYTHING if whole == len(sent) else Frontier.before(whole)


def _after(bound: Bound) -> Bound:
    """Return the bound behind a time."""
    return (*bound[:-1], bound[-1] + 1)


def _padded(bound: Bound, depth: int) -> Bound:
    return (*bound, *(0,) * (depth - len(bound))) if bound != NO_TIME else (0,) * depth
