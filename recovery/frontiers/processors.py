"""Processors as the choice of a rollback sees them: where can each go back to, and what then?

The table of the paper, per available frontier f of a processor p: the state there; M̄(d, f), the
messages delivered on each input; N̄(p, f), the notifications received; φ(e)(f), what is fixed on
each output; D̄(e, f), the messages sent and no longer to be had. State and logs stay where they
are; here are the frontiers only.

Over-estimates of M̄, N̄ and D̄ and under-estimates of φ are safe: more is undone than need be.

Source: Isard and Abadi, "Falkirk Wheel", 3.4 and Table 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Protocol

from .frontier import EVERYTHING, NOTHING, Frontier
from .transformers import Transformer

#: Of a processor or an edge.
Name = str


class Constraint(Enum):
    """The rules of a consistent rollback, for an edge from `p` to `q`."""

    #: M̄(e, f(q)) ⊆ φ(e)(f(p)): messages that `q` keeps are messages that `p` has sent for good.
    DELIVERED = "delivered"
    #: D̄(e, f(p)) ⊆ f(q): messages that `p` cannot send again are messages that `q` keeps.
    DISCARDED = "discarded"
    #: N̄(q, f(q)) ⊆ φ(e)(f_n(p)): a notification that `q` keeps still holds at all `p` before it.
    NOTIFIED = "notified"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place to go back to.

    Attributes:
        frontier: f, the times whose effects the state holds, in the processor's own domain.
        label: the caller's name of this place, for reports.
        delivered: {input edge: M̄(d, f)}; absent: `frontier`.
        notified: N̄(p, f).
        fixed: {output edge: φ(e)(f)} in the receiver's domain; absent: the processor's transformer
            says, or else nothing is fixed (everything, of a processor that runs on).
        discarded: {output edge: D̄(e, f)} in the receiver's domain; absent: whatever was sent.
    """

    frontier: Frontier
    label: str | int | None = None
    delivered: Mapping[Name, Frontier] = field(default_factory=dict)
    notified: Frontier = NOTHING
    fixed: Mapping[Name, Frontier] = field(default_factory=dict)
    discarded: Mapping[Name, Frontier] = field(default_factory=dict)

    def delivered_on(self, edge: Name) -> Frontier:
        """Return M̄(d, f)."""
        return self.delivered.get(edge, self.frontier)

    def __str__(self) -> str:
        if self.label is not None:
            return str(self.label)
        return "present" if self.frontier == EVERYTHING else f"[{self.frontier}]"


def present(positions: Frontier, discarded: Mapping[Name, Frontier]) -> Checkpoint:
    """Return the place of a processor that has not failed, and goes on if it may.

    Args:
        positions: what it has worked on. Not `EVERYTHING`, if a failed sender may hold messages in
            no log: those would count as kept.
        discarded: for every output edge, the messages that it can send no more; of what is on the
            way or in its log, none.
    """
    fixed = dict.fromkeys(discarded, EVERYTHING)
    return Checkpoint(positions, "present", fixed=fixed, discarded=discarded)


#: The beginning: no event has happened.
BEGINNING = Checkpoint(NOTHING, "beginning")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a processor cannot stay at, or restore, a checkpoint: a constraint that would be broken.

    Attributes:
        processor: the processor that goes back.
        rejected: the checkpoint that it cannot have.
        neighbour: the processor at the other end of `edge`, which causes that.
        needs: the times that `rejected` implies on the edge.
        limit: the times that the neighbour's choice permits there.
    """

    processor: Name
    rejected: Checkpoint
    constraint: Constraint
    edge: Name
    neighbour: Name
    needs: Frontier
    limit: Frontier

    def __str__(self) -> str:
        needs, limit = _on(self.needs, self.edge), _on(self.limit, self.edge)
        back = f"but {self.neighbour} goes back to where"
        match self.constraint:
            case Constraint.DELIVERED:
                has = f"has read {needs} at {self.rejected}"
                return f"{self.processor} {has}, {back} {limit} was sent"
            case Constraint.DISCARDED:
                has = f"cannot send {needs} again at {self.rejected}"
                return f"{self.processor} {has}, {back} {limit} was read"
            case Constraint.NOTIFIED:
                has = f"was notified of {needs} at {self.rejected}"
                return f"{self.processor} {has}, {back} {limit} was over"


def _on(frontier: Frontier, edge: Name) -> str:
    """The times of one edge as text."""
    if frontier == EVERYTHING:
        return "everything"
    return str(frontier.on(edge))


class Processor(Protocol):
    """A processor: the frontiers available at it, and the projections along its outputs."""

    def highest(self) -> Checkpoint:
        """Return the available checkpoint that undoes least."""
        ...

    def lower(self, reason: Reason) -> Checkpoint | None:
        """Return the highest available checkpoint below the rejected one that may do."""
        ...

    def fixed(self, edge: Name, checkpoint: Checkpoint) -> Frontier:
        """Return φ(e)(f) for an available checkpoint."""
        ...

    def fixed_at(self, edge: Name, frontier: Frontier) -> Frontier:
        """Return φ(e) of any frontier: a notification frontier need not be available."""
        ...

    def discarded(self, edge: Name, checkpoint: Checkpoint) -> Frontier:
        """Return D̄(e, f)."""
        ...

    def hears_notifications(self) -> bool:
        """Tell whether some N̄(p, f) is not empty."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A processor that can go back to checkpoints, and to nothing between.

    Attributes:
        checkpoints: lowest first, each frontier within the next; the last may be the `present`, of
            a processor that has not failed.
        transformers: {output edge: φ}, where φ does not depend on the history.

    Raises: ValueError: frontiers that are not in order, or a φ that shrinks as frontiers grow.
        Checkpoints without an order would have no single best choice.
    """

    checkpoints: Sequence[Checkpoint]
    transformers: Mapping[Name, Transformer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise ValueError("a processor without a checkpoint: BEGINNING is always one")
        edges = {edge for checkpoint in self.checkpoints for edge in checkpoint.fixed}
        for low, high in pairwise(self.checkpoints):
            if not low.frontier <= high.frontier:
                raise ValueError(f"[{low.frontier}] is not within [{high.frontier}]: sort them")
            for edge in edges:
                if not self.fixed(edge, low) <= self.fixed(edge, high):
                    raise ValueError(f"less is fixed on {edge} at {high} than before, at {low}")

    def highest(self) -> Checkpoint:
        """Return the last checkpoint."""
        return self.checkpoints[-1]

    def lower(self, reason: Reason) -> Checkpoint | None:
        """Return the checkpoint before the rejected one."""
        before: Checkpoint | None = None
        for checkpoint in self.checkpoints:
            if checkpoint is reason.rejected:
                return before
            before = checkpoint
        raise ValueError(f"{reason.rejected} is no checkpoint of {reason.processor}")

    def fixed(self, edge: Name, checkpoint: Checkpoint) -> Frontier:
        """Return what the checkpoint states, or the transformer."""
        if edge in checkpoint.fixed:
            return checkpoint.fixed[edge]
        if edge in self.transformers:
            return self.transformers[edge].fixed(checkpoint.frontier)
        return EVERYTHING if checkpoint.frontier == EVERYTHING else NOTHING

    def fixed_at(self, edge: Name, frontier: Frontier) -> Frontier:
        """Return the transformer's answer, or that of the highest checkpoint within."""
        if edge in self.transformers:
            return self.transformers[edge].fixed(frontier)
        for checkpoint in reversed(self.checkpoints):
            if checkpoint.frontier <= frontier:
                return self.fixed(edge, checkpoint)
        return NOTHING

    def discarded(self, edge: Name, checkpoint: Checkpoint) -> Frontier:
        """Return what the checkpoint states; else nothing is logged."""
        if edge in checkpoint.discarded:
            return checkpoint.discarded[edge]
        if edge in self.transformers:
            return self.transformers[edge].reached(checkpoint.frontier)
        return self.fixed(edge, checkpoint)

    def hears_notifications(self) -> bool:
        """Tell whether some checkpoint states notifications."""
        notified = [checkpoint.notified for checkpoint in self.checkpoints]
        return any(one is not NOTHING and one != NOTHING for one in notified)


@dataclass(frozen=True, slots=True)
class Stateless:
    """A processor that keeps no state between structured times: every frontier is available.

    Attributes:
        transformers: {output edge: transformer}.
        logged: output edges whose messages are all logged: nothing on them is discarded.
        complete: the times that are over at the processor; everything, if it has not failed.
        notified: the processor acts on notifications, so N̄(p, f) = f.
    """

    transformers: Mapping[Name, Transformer] = field(default_factory=dict)
    logged: frozenset[Name] = frozenset()
    complete: Frontier = EVERYTHING
    notified: bool = False

    def highest(self) -> Checkpoint:
        """Return the times that are over."""
        return self._at(self.complete)

    def lower(self, reason: Reason) -> Checkpoint | None:
        """Return the greatest frontier that keeps the broken constraint."""
        limit = reason.limit
        if reason.constraint is Constraint.DISCARDED:
            limit = self.transformers[reason.edge].within(limit)
        own = min(reason.rejected.frontier.bound(None), limit.bound(None))
        return self._at(Frontier({None: own}))

    def fixed(self, edge: Name, checkpoint: Checkpoint) -> Frontier:
        """Return the transformer's answer."""
        return self.transformers[edge].fixed(checkpoint.frontier)

    def fixed_at(self, edge: Name, frontier: Frontier) -> Frontier:
        """Return the transformer's answer."""
        return self.transformers[edge].fixed(frontier)

    def discarded(self, edge: Name, checkpoint: Checkpoint) -> Frontier:
        """Return all that was sent, unless it is logged."""
        if edge in self.logged:
            return NOTHING
        return self.transformers[edge].reached(checkpoint.frontier)

    def hears_notifications(self) -> bool:
        """Return `notified`."""
        return self.notified

    def _at(self, frontier: Frontier) -> Checkpoint:
        return Checkpoint(frontier, notified=frontier if self.notified else NOTHING)


def trimmed(checkpoint: Checkpoint, edge: Name, frontier: Frontier) -> Checkpoint:
    """Return the checkpoint after the log of `edge` lost the messages in `frontier`."""
    lost = checkpoint.discarded.get(edge, NOTHING) | frontier
    return replace(checkpoint, discarded={**checkpoint.discarded, edge: lost})
