"""Which regions go back with another one, by the choice of `recovery/frontiers`.

A region is a processor, and a lane of a log that it reads is an edge. A region can go back to its
complete checkpoints. At a checkpoint it has read each lane up to a position (M̄), and written its
own lanes up to their ends (φ); what was trimmed of a lane it cannot send again (D̄).

A region that runs goes on from the present if it may. The positions of its newest checkpoint stand
for the present: a reader that is further, and meets the cut, fails and restarts from there.

A lane that was cut and has grown again bears other records at the same positions. A checkpoint
whose records a later restart of the log has cut off fits no checkpoint of the writing region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from headrace.recovery.edge_log import Entry, EntryKind, Place, ends_at
from headrace.recovery.frontiers.fixed_point import Choice, Dataflow, Edge, choose
from headrace.recovery.frontiers.frontier import ALL_TIMES, EVERYTHING, NOTHING, Frontier
from headrace.recovery.frontiers.processors import Checkpoint, Checkpointed, Constraint, Reason


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """The logs of a region, by name.

    Attributes:
        sinks: its other sinks, which cannot be cut.
    """

    writes: Sequence[str]
    reads: Sequence[str]
    sinks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RegionSeen:
    """Where a region can go back to.

    Attributes:
        kept: (number, {log: how far it has been read}) of complete checkpoints, oldest first.
        runs: the region goes on if it may. Otherwise it starts, from the last of `kept`, or from
            nothing.
    """

    kept: Sequence[tuple[int, Mapping[str, Place]]]
    runs: bool


@dataclass(frozen=True)
class LogSeen:
    """The entries of a log, oldest first; read after the checkpoints of its readers."""

    entries: Sequence[Entry]

    @cached_property
    def first(self) -> Mapping[int, int]:
        """{lane: position of its first record that was not trimmed}."""
        first = dict(self.entries[0].ends) if self.entries else {}
        for piece in (piece for entry in self.entries for piece in entry.pieces):
            first[piece.lane] = min(piece.first, first.get(piece.lane, piece.first))
        return first

    @cached_property
    def ends(self) -> Mapping[int, int]:
        """{lane: its end now}."""
        return self.entries[-1].ends if self.entries else {}

    @cached_property
    def lanes(self) -> frozenset[int]:
        """All lanes that there were."""
        return frozenset(lane for entry in self.entries for lane in entry.ends)

    def at(self, checkpoint: int) -> Mapping[int, int] | None:
        """Return the ends as of a checkpoint of the writing region; None: it is forgotten."""
        return ends_at(reversed(self.entries), checkpoint)

    def holds(self, place: Place, lane: int) -> bool:
        """Tell whether the log still has what was read of a lane: no restart has cut it off."""
        position, source = place.positions.get(lane, 0), place.sources.get(lane, 0)
        restarts = (e for e in self.entries if e.kind is EntryKind.RESTART and e.number > source)
        return all(position <= restart.ends.get(lane, 0) for restart in restarts)


@dataclass(frozen=True, slots=True)
class GoingBack:
    """A region goes back because another one does.

    Attributes:
        checkpoint: its number.
        reasons: from the first cause on, one sentence each.
    """

    region: str
    checkpoint: int
    reasons: Sequence[str]


def going_back(
    regions: Mapping[str, RegionSpec],
    seen: Mapping[str, RegionSeen],
    logs: Mapping[str, LogSeen],
) -> list[GoingBack]:
    """Return the regions that cannot go on, or start where they would; writers before readers.

    Raises: NoConsistentChoice; `told` says it in a sentence.
    """
    view = _View(regions, logs)
    processors = {name: view.processor(name, seen[name]) for name in regions}
    choice = choose(view.dataflow, processors)
    return [
        GoingBack(name, _number(choice, name), [told(reason) for reason in choice.explain(name)])
        for name, processor in processors.items()
        if choice.checkpoints[name] is not processor.highest()
    ]


def _number(choice: Choice, region: str) -> int:
    label = str(choice.checkpoints[region])
    return int(label.removeprefix("chk-")) if label.startswith("chk-") else 0


def told(reason: Reason) -> str:
    """Say a reason in a sentence."""
    if reason.constraint is Constraint.DISCARDED:
        lane = reason.edge.removesuffix(f" for {reason.neighbour}")
        return f"{reason.processor} cannot write {lane} again, and {reason.neighbour} lacks it"
    lane = reason.edge.removesuffix(f" for {reason.processor}")
    has = f"{reason.rejected} of {reason.processor} has read more"
    return f"{has} of {lane} than {reason.neighbour} keeps"


@dataclass(frozen=True)
class _View:
    regions: Mapping[str, RegionSpec]
    logs: Mapping[str, LogSeen]
    #: {log: its readers}.
    readers: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, spec in self.regions.items():
            for log in spec.reads:
                self.readers.setdefault(log, []).append(name)

    @cached_property
    def dataflow(self) -> Dataflow:
        """An edge for every lane and reader."""
        return Dataflow(
            Edge(_edge(log, lane, reader), writer, reader)
            for writer, spec in self.regions.items()
            for log in spec.writes
            for reader in self.readers.get(log, ())
            for lane in sorted(self.logs[log].lanes)
        )

    def processor(self, name: str, seen: RegionSeen) -> Checkpointed:
        """Describe a region by its checkpoints; those that its logs have forgotten are none."""
        checkpoints: list[Checkpoint] = []
        frontier = NOTHING
        for number, places in seen.kept:
            ends = self._ends(name, number)
            if ends is not None:
                delivered = self._delivered(name, places)
                frontier = frontier | Frontier.before(number) | _union(delivered)
                discarded = self._outputs(name, {log: s.first for log, s in self.logs.items()})
                checkpoints.append(
                    Checkpoint(frontier, f"chk-{number}", delivered, NOTHING, ends, discarded)
                )
        if seen.runs:
            checkpoints.append(self._present(name, checkpoints[-1:]))
        elif not checkpoints:
            nothing = self._outputs(name, {log: {} for log in self.logs})
            checkpoints = [Checkpoint(NOTHING, "the beginning", {}, NOTHING, nothing, nothing)]
        return Checkpointed(checkpoints)

    def _present(self, name: str, newest: Sequence[Checkpoint]) -> Checkpoint:
        """A region that runs has all that it needs of its logs, whatever was trimmed."""
        delivered = newest[0].delivered if newest else self._delivered(name, {})
        fixed = self._outputs(name, {log: seen.ends for log, seen in self.logs.items()})
        discarded = self._outputs(name, {log: seen.first for log, seen in self.logs.items()})
        return Checkpoint(EVERYTHING, "the present", delivered, NOTHING, fixed, discarded)

    def _delivered(self, name: str, places: Mapping[str, Place]) -> dict[str, Frontier]:
        delivered: dict[str, Frontier] = {}
        for log in self.regions[name].reads:
            seen, place = self.logs[log], places.get(log, Place())
            for lane in seen.lanes:
                edge = _edge(log, lane, name)
                position = Frontier.sequences({edge: place.positions.get(lane, 0)})
                delivered[edge] = (
                    position if seen.holds(place, lane) else Frontier({edge: ALL_TIMES})
                )
        return delivered

    def _ends(self, name: str, number: int) -> dict[str, Frontier] | None:
        found = {log: self.logs[log].at(number) for log in self.regions[name].writes}
        if None in found.values():
            return None
        return self._outputs(name, {log: ends for log, ends in found.items() if ends is not None})

    def _outputs(
        self, name: str, positions: Mapping[str, Mapping[int, int]]
    ) -> dict[str, Frontier]:
        """Return {edge: the records of its lane before a position}."""
        return {
            edge: Frontier.sequences({edge: positions[log].get(lane, 0)})
            for log in self.regions[name].writes
            for reader in self.readers.get(log, ())
            for lane in self.logs[log].lanes
            for edge in [_edge(log, lane, reader)]
        }


def _edge(log: str, lane: int, reader: str) -> str:
    return f"lane {lane} of log {log!r} for {reader}"


def _union(frontiers: Mapping[str, Frontier]) -> Frontier:
    union = NOTHING
    for frontier in frontiers.values():
        union = union | frontier
    return union
