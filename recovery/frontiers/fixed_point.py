"""The choice of a rollback: where does each processor go back to, and why?

The maximum consistent choice: no processor can keep more without breaking a constraint (see
`Constraint`). The fixed point begins with the highest checkpoint of everybody and lowers whoever
breaks a constraint, until nobody does. An answer cannot depend on the order of these steps: a
step lowers a processor only as far as every consistent choice does.

Notifications add an auxiliary frontier f_n(p) within f(p) to each processor: the notifications
that still hold there after the rollback, whatever happens again further up. f_n is bounded by
φ(d)(f_n(src d)) on every input, so a promise that was made far upstream and is undone there takes
the notifications of everybody downstream with it (the paper's Figure 5). A graph in which nobody
was notified does without f_n.

A reason stays true: neighbours only go further back, so a rejected checkpoint would break the same
constraint in the final choice.

Source: Isard and Abadi, "Falkirk Wheel", 3.5, 3.6 and Figure 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .frontier import Frontier
from .processors import Checkpoint, Constraint, Name, Processor, Reason


class NoConsistentChoice(Exception):
    """A processor has no checkpoint that fits the others'; `reason` tells of its lowest."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"{reason.processor} has nothing older to go back to: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Edge:
    """A way of messages from processor `source` to processor `target`.

    Sequence numbers are ordered within an edge, so a log with an order per producing subtask is one
    edge each: `Edge("clicks/3", "ingest", "count")`.
    """

    name: Name
    source: Name
    target: Name


class Dataflow:
    """Processors by name, and the edges between them; cycles are welcome.

    Raises: ValueError: two edges of one name.
    """

    def __init__(self, edges: Iterable[Edge]) -> None:
        self.edges: dict[Name, Edge] = {}
        #: {processor: edges}.
        self.inputs: dict[Name, list[Edge]] = {}
        self.outputs: dict[Name, list[Edge]] = {}
        for edge in edges:
            if edge.name in self.edges:
                raise ValueError(f"two edges are named {edge.name!r}")
            self.edges[edge.name] = edge
            self.inputs.setdefault(edge.target, []).append(edge)
            self.outputs.setdefault(edge.source, []).append(edge)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where each processor goes back to.

    Attributes:
        checkpoints: {processor: its checkpoint}.
        reasons: {processor that went back: why not higher, in the order of the fixed point}; the
            last tells of the checkpoint just above the chosen one.
        notifications: {processor: f_n}; empty where nobody was notified.
    """

    checkpoints: Mapping[Name, Checkpoint]
    reasons: Mapping[Name, Sequence[Reason]]
    notifications: Mapping[Name, Frontier]

    def frontier(self, processor: Name) -> Frontier:
        """Return f(p)."""
        return self.checkpoints[processor].frontier

    def explain(self, processor: Name) -> list[Reason]:
        """Return the reasons from the first cause on: each is about the neighbour of the next.

        Empty: the processor kept all it could (it may have failed itself).
        """
        chain: list[Reason] = []
        while processor in self.reasons and all(r.processor != processor for r in chain):
            chain.append(self.reasons[processor][-1])
            processor = chain[-1].neighbour
        return chain[::-1]


def choose(
    dataflow: Dataflow, processors: Mapping[Name, Processor], changed: Iterable[Name] | None = None
) -> Choice:
    """Return the maximum consistent choice.

    A processor that has not failed offers the `present` as its highest checkpoint.

    Args:
        processors: every processor of the dataflow.
        changed: the only processors whose highest checkpoint may break a constraint: the failed
            ones, if all others run. None: anybody's.

    Raises: NoConsistentChoice: never, if everybody offers `BEGINNING`.
    """
    fixed_point = _FixedPoint(dataflow, processors)
    fixed_point.run(processors if changed is None else changed)
    return Choice(fixed_point.chosen, fixed_point.reasons, fixed_point.notifications)


class _FixedPoint:
    def __init__(self, dataflow: Dataflow, processors: Mapping[Name, Processor]) -> None:
        self._dataflow = dataflow
        self._processors = processors
        self.chosen = {name: processor.highest() for name, processor in processors.items()}
        self.reasons: dict[Name, list[Reason]] = {}
        #: {processor: f_n}.
        self.notifications: dict[Name, Frontier] = {}
        if any(processor.hears_notifications() for processor in processors.values()):
            self.notifications = {name: one.frontier for name, one in self.chosen.items()}

    def run(self, names: Iterable[Name]) -> None:
        """Lower processors until nobody breaks a constraint."""
        #: In order; values mean nothing.
        pending: dict[Name, None] = dict.fromkeys(names)
        for name in list(pending):
            pending.update(self._neighbours(name))
        while pending:
            name = next(iter(pending))
            del pending[name]
            if self._settle(name):
                pending.update(self._neighbours(name))

    def _neighbours(self, name: Name) -> dict[Name, None]:
        after = [edge.target for edge in self._dataflow.outputs.get(name, ())]
        before = [edge.source for edge in self._dataflow.inputs.get(name, ())]
        return dict.fromkeys([*after, *before])

    def _settle(self, name: Name) -> bool:
        """Lower one processor as far as its neighbours require; True: its choice has changed."""
        before = checkpoint = self.chosen[name]
        while reason := self._broken(name, checkpoint):
            self.reasons.setdefault(name, []).append(reason)
            lower = self._processors[name].lower(reason)
            if lower is None:
                raise NoConsistentChoice(reason)
            assert lower.frontier <= checkpoint.frontier, f"{name} went up to {lower}"
            checkpoint = lower
        self.chosen[name] = checkpoint
        return self._settle_notifications(name) or checkpoint is not before

    def _settle_notifications(self, name: Name) -> bool:
        if not self.notifications:
            return False
        frontier = self.notifications[name] & self.chosen[name].frontier
        for edge in self._dataflow.inputs.get(name, ()):
            frontier = frontier.limited(self._still_over(edge), edge.name)
        changed = frontier != self.notifications[name]
        self.notifications[name] = frontier
        return changed

    def _still_over(self, edge: Edge) -> Frontier:
        """Return φ(d)(f_n(src d)): no rollback of the source can send these times again."""
        source = self._processors[edge.source]
        return source.fixed_at(edge.name, self.notifications[edge.source])

    def _broken(self, name: Name, checkpoint: Checkpoint) -> Reason | None:
        """Return the first constraint that the checkpoint breaks, given the neighbours."""
        for edge in self._dataflow.inputs.get(name, ()):
            source = edge.source
            needs = checkpoint.delivered_on(edge.name)
            limit = self._processors[source].fixed(edge.name, self._at(source, name, checkpoint))
            kind = Constraint.DELIVERED
            if limit.covers(needs, edge.name) and self.notifications:
                needs, limit = checkpoint.notified, self._still_over(edge)
                kind = Constraint.NOTIFIED
            if not limit.covers(needs, edge.name):
                return Reason(name, checkpoint, kind, edge.name, source, needs, limit)
        for edge in self._dataflow.outputs.get(name, ()):
            needs = self._processors[name].discarded(edge.name, checkpoint)
            limit = self._at(edge.target, name, checkpoint).frontier
            if not limit.covers(needs, edge.name):
                target, kind = edge.target, Constraint.DISCARDED
                return Reason(name, checkpoint, kind, edge.name, target, needs, limit)
        return None

    def _at(self, other: Name, name: Name, checkpoint: Checkpoint) -> Checkpoint:
        """Return the other end's choice; of an edge to itself, the checkpoint at hand."""
        return checkpoint if other == name else self.chosen[other]
