"""The monitor: how far back can any failure send each processor, and what may go therefore?

The low-watermark of a processor is its part in the maximum consistent choice among *persisted*
checkpoints, as if everybody failed at once. More checkpoints only raise it. Below it nothing is
needed any more: older checkpoints may be deleted, a source may acknowledge its inputs, and senders
may trim their logs of messages that the processor keeps.

A rollback voids the checkpoints above its choice: what happens again need not be what happened.
The choice never lies below the low-watermark, which is asserted.

Pure: it takes facts and returns permissions. The monitor must hear of a checkpoint only when the
checkpoint, its logs and its metadata are durable.

Source: Isard and Abadi, "Falkirk Wheel", 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .fixed_point import Choice, Dataflow, choose
from .frontier import Frontier
from .processors import Checkpoint, Checkpointed, Name, Processor, Stateless


@dataclass(frozen=True, slots=True)
class Release:
    """`processor` never goes back behind `checkpoint`: older ones may go, and inputs within its
    frontier may be acknowledged.
    """

    processor: Name
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Trim:
    """`processor` may drop logged messages of `edge` within `frontier`."""

    processor: Name
    edge: Name
    frontier: Frontier


Permission = Release | Trim


class Monitor:
    """The low-watermarks of a dataflow.

    Args:
        processors: at the start, each with its lowest checkpoint, or as the job was restored.

    Raises: NoConsistentChoice: the start is inconsistent.
    """

    def __init__(self, dataflow: Dataflow, processors: Mapping[Name, Processor]) -> None:
        self._dataflow = dataflow
        self._processors: dict[Name, Processor] = dict(processors)
        self._low: Mapping[Name, Checkpoint] = choose(dataflow, processors).checkpoints

    def low_watermark(self, processor: Name) -> Checkpoint:
        """Return the lowest checkpoint that a failure may still send the processor to."""
        return self._low[processor]

    def persisted(self, processor: Name, checkpoint: Checkpoint) -> list[Permission]:
        """A checkpoint is durable. Checkpoints of a processor may be reported in any order."""
        one = self._processors[processor]
        if not isinstance(one, Checkpointed):
            raise TypeError(f"{processor} takes no checkpoints: report what is over there")
        below = [c for c in one.checkpoints if c.frontier <= checkpoint.frontier]
        above = [c for c in one.checkpoints if not c.frontier <= checkpoint.frontier]
        checkpoints = [*below, checkpoint, *above]
        self._processors[processor] = replace(one, checkpoints=checkpoints)
        return self._raise()

    def completed(self, processor: Name, frontier: Frontier) -> list[Permission]:
        """The times of `frontier` are over at a stateless processor."""
        one = self._processors[processor]
        if not isinstance(one, Stateless):
            raise TypeError(f"{processor} has state: report its checkpoints")
        assert one.complete <= frontier, f"{processor}: time went back to {frontier}"
        self._processors[processor] = replace(one, complete=frontier)
        return self._raise()

    def rolled_back(self, choice: Choice) -> None:
        """Processors went back: forget their checkpoints above the choice."""
        for name, one in self._processors.items():
            chosen, low = choice.frontier(name), self._low[name]
            assert low.frontier <= chosen, f"{name} went back to {chosen}, behind {low}"
            if isinstance(one, Checkpointed):
                kept = [c for c in one.checkpoints if c.frontier <= chosen]
                self._processors[name] = replace(one, checkpoints=kept)
            elif isinstance(one, Stateless):
                self._processors[name] = replace(one, complete=one.complete & chosen)

    def check(self) -> None:
        """Assert every invariant."""
        lowest = choose(self._dataflow, self._processors).checkpoints
        for name, low in self._low.items():
            assert lowest[name].frontier == low.frontier, f"{name}: {low}, not {lowest[name]}"

    def _raise(self) -> list[Permission]:
        """Permissions in the order of the processors; none is given twice."""
        before, self._low = self._low, choose(self._dataflow, self._processors).checkpoints
        permissions: list[Permission] = []
        for name, low in self._low.items():
            was = before[name].frontier
            assert was <= low.frontier, f"{name}: the low-watermark went back to {low}"
            if was == low.frontier:
                continue
            self._forget(name, low)
            permissions.append(Release(name, low))
            for edge in self._dataflow.inputs.get(name, ()):
                grown = low.frontier.on(edge.name)
                if not was.covers(grown, edge.name):
                    permissions.append(Trim(edge.source, edge.name, grown))
        return permissions

    def _forget(self, name: Name, low: Checkpoint) -> None:
        one = self._processors[name]
        if isinstance(one, Checkpointed):
            kept = one.checkpoints[list(one.checkpoints).index(low) :]
            self._processors[name] = replace(one, checkpoints=kept)
