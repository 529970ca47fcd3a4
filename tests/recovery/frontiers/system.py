"""A small system of processors that runs, fails and is rolled back by the solver, with an oracle.

Messages are numbers that are used once. What a processor sends is drawn, so what is executed again
comes out otherwise. Each processor keeps checkpoints; some edges are logged with them, and a
running processor holds what its readers may still ask for, until the log is trimmed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headrace.recovery.frontiers.fixed_point import Choice, Dataflow, Edge, choose
from headrace.recovery.frontiers.frontier import NOTHING, Frontier
from headrace.recovery.frontiers.monitor import Monitor, Trim
from headrace.recovery.frontiers.processors import (
    BEGINNING,
    Checkpoint,
    Checkpointed,
    present,
    trimmed,
)


class Inconsistent(AssertionError):
    """The system is in a state that no execution without failures can reach."""


@dataclass
class Node:
    """Counts of messages read and sent by edge; `steps` makes checkpoints of sources differ."""

    read: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=lambda: [BEGINNING])
    steps: int = 0


class System:
    """A random graph and its run."""

    def __init__(self, seed: int, trim_more: int = 0) -> None:
        self.rng = rng = random.Random(seed)
        names = ["a", "b", "c", "d"][: rng.randint(2, 4)]
        ends = [(rng.choice(names), rng.choice(names)) for _ in range(rng.randint(1, 6))]
        self.edges = {f"e{n}": Edge(f"e{n}", *pair) for n, pair in enumerate(ends)}
        self.dataflow = Dataflow(self.edges.values())
        self.logged = {edge for edge in self.edges if rng.random() < 0.7}
        self.nodes = {name: Node() for name in names}
        #: {edge: every message sent, and every message read, in order}.
        self.sent: dict[str, list[int]] = {edge: [] for edge in self.edges}
        self.read: dict[str, list[int]] = {edge: [] for edge in self.edges}
        #: {edge: messages that the log has lost}.
        self.trimmed = dict.fromkeys(self.edges, 0)
        self.trim_more = trim_more
        self.message = 0
        start = {name: Checkpointed([BEGINNING]) for name in names}
        self.monitor = Monitor(self.dataflow, start)

    def run(self, steps: int) -> None:
        """Work, take checkpoints and fail at random."""
        for _ in range(steps):
            name = self.rng.choice(list(self.nodes))
            step = self.rng.choices((self.work, self.checkpoint, self.fail), (10, 4, 1))[0]
            step(name)
            self.monitor.check()

    def work(self, name: str) -> None:
        """Read a message, if there is one, and send some."""
        node = self.nodes[name]
        inputs = [e for e, edge in self.edges.items() if edge.target == name]
        waiting = [e for e in inputs if len(self.read[e]) < len(self.sent[e])]
        if waiting:
            edge = self.rng.choice(waiting)
            self.read[edge].append(self.sent[edge][len(self.read[edge])])
            node.read[edge] = len(self.read[edge])
        node.steps += 1
        for edge, one in self.edges.items():
            if one.source == name and self.rng.random() < 0.5:
                self.message += 1
                self.sent[edge].append(self.message)
                node.sent[edge] = len(self.sent[edge])

    def checkpoint(self, name: str) -> None:
        """Persist a checkpoint, and trim what the monitor permits."""
        node = self.nodes[name]
        frontier = self._position(name)
        if frontier == node.checkpoints[-1].frontier:
            return
        fixed = {edge: Frontier.sequences({edge: n}) for edge, n in node.sent.items()}
        kept = {edge: NOTHING for edge in node.sent if edge in self.logged}
        made = Checkpoint(frontier, len(node.checkpoints), fixed=fixed, discarded=kept)
        node.checkpoints.append(made)
        for permission in self.monitor.persisted(name, made):
            if isinstance(permission, Trim):
                edge = permission.edge
                self.trimmed[edge] = int(permission.frontier.bound(edge)[0]) + self.trim_more

    def _position(self, name: str) -> Frontier:
        node = self.nodes[name]
        return Frontier.sequences({**node.read, f"own {name}": node.steps})

    def fail(self, name: str) -> None:
        """Let one processor fail: roll back, and look whether the result is consistent."""
        choice = choose(
            self.dataflow, {n: Checkpointed(self._offers(n, name)) for n in self.nodes}, [name]
        )
        self.monitor.rolled_back(choice)
        for other, node in self.nodes.items():
            self._restore(other, node, choice)
        self._check(choice)

    def _offers(self, name: str, failed: str) -> list[Checkpoint]:
        offers = [self._now(c) for c in self.nodes[name].checkpoints]
        if name != failed:
            outputs = [e for e, edge in self.edges.items() if edge.source == name]
            gone = {e: Frontier.sequences({e: self.trimmed[e]}) for e in outputs}
            offers.append(present(self._position(name), gone))
        return offers

    def _now(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the logs as they are now."""
        for edge, sent in checkpoint.fixed.items():
            gone = Frontier.sequences({edge: self.trimmed[edge]})
            if edge in checkpoint.discarded:
                checkpoint = trimmed(checkpoint, edge, gone & sent)
        return checkpoint

    def _restore(self, name: str, node: Node, choice: Choice) -> None:
        chosen = choice.checkpoints[name]
        node.checkpoints = [c for c in node.checkpoints if c.frontier <= chosen.frontier]
        if chosen.label == "present":
            return
        node.steps = _count(chosen.frontier, f"own {name}")
        for edge, one in self.edges.items():
            if one.target == name:
                node.read[edge] = _count(chosen.frontier, edge)
                del self.read[edge][node.read[edge] :]
            if one.source == name:
                node.sent[edge] = _count(chosen.fixed.get(edge, NOTHING), edge)
                del self.sent[edge][node.sent[edge] :]

    def _check(self, choice: Choice) -> None:
        for edge, one in self.edges.items():
            read, sent = self.read[edge], self.sent[edge]
            if read != sent[: len(read)]:
                raise Inconsistent(f"{one.target} has read messages of {edge} that are undone")
            back = choice.checkpoints[one.source].label != "present"
            held = len(sent) if back and edge not in self.logged else self.trimmed[edge]
            if len(read) < min(held, len(sent)):
                raise Inconsistent(f"{one.target} needs messages of {edge} that are gone")


def _count(frontier: Frontier, edge: str) -> int:
    return int((*frontier.bound(edge), 0)[0])
