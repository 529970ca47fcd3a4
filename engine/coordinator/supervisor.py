"""The machine above the regions of a job: which logs end, which entries no reader needs any more,
and which regions stop when another has failed.

Each region has a coordinator of its own and restarts by itself: with `read="committed"` no reader
has read beyond what the writing region has completed, so a failure concerns one region alone. The
exception is a region that falls back behind its newest checkpoint, which is damaged: then
`region_choice.py` says which readers go back as well.

A log is trimmed by a low-watermark, which never goes back: the oldest entry that some kept
checkpoint of some reading region still needs. A region without a checkpoint needs every entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from headrace.recovery.frontiers.fixed_point import NoConsistentChoice

from .coordinator_events import Outcome
from .region_choice import GoingBack, LogSeen, RegionSeen, RegionSpec, going_back, told


@dataclass(frozen=True, slots=True)
class RegionSettled:
    """A region's end is decided and durable."""

    region: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CheckpointsKept:
    """The complete checkpoints and savepoints of a region that storage holds now.

    Attributes:
        needs: for each checkpoint {log: number of the oldest entry that it needs}.
    """

    region: str
    needs: Sequence[Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class RegionRestarted:
    """A region has gone back to its newest checkpoint.

    Attributes:
        checkpoint: its number; 0: the region began anew.
        rows: about how many records of its sources it reads once more.
        reason: why, as its coordinator says.
    """

    region: str
    checkpoint: int
    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class RegionsSeen:
    """Regions and logs as storage has them, after a region has failed."""

    regions: Mapping[str, RegionSeen]
    logs: Mapping[str, LogSeen]


SupervisorEvent = RegionSettled | CheckpointsKept | RegionRestarted | RegionsSeen


@dataclass(frozen=True, slots=True)
class EndLog:
    """Say in the log that nothing follows."""

    log: str


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Delete the entries below this number, with their pieces."""

    log: str
    below: int


@dataclass(frozen=True, slots=True)
class StopRegion:
    """Let a region take a last checkpoint and end: another one has failed."""

    region: str


@dataclass(frozen=True, slots=True)
class RollBack:
    """Stop these regions, cut their logs to these checkpoints, and start them there again."""

    checkpoints: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End all regions at once and fail the job, as regions cannot go on together."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportFailover:
    """Tell people which regions went back, how far, and why."""

    text: str


#: In list order. A log is trimmed only below what all checkpoints told before need.
SupervisorEffect = EndLog | TrimLog | StopRegion | RollBack | GiveUp | ReportFailover


class Supervisor:
    """Watches over the regions of one job."""

    def __init__(self, regions: Mapping[str, RegionSpec]) -> None:
        self._regions = dict(regions)
        #: {region: how it ended}.
        self._settled: dict[str, Outcome] = {}
        self._gave_up = False
        #: {log: {reading region: oldest entry that it needs}}.
        self._needed: dict[str, dict[str, int]] = {}
        for region, spec in self._regions.items():
            for log in spec.reads:
                self._needed.setdefault(log, {})[region] = 0
        self._trimmed = dict.fromkeys(self._needed, 0)

    @property
    def is_over(self) -> bool:
        """Every region has ended."""
        return len(self._settled) == len(self._regions)

    @property
    def outcome(self) -> Outcome:
        """How the job has ended: as its worst region."""
        assert self.is_over, "regions still run"
        worst_first = (Outcome.FAILED, Outcome.STOPPED, Outcome.FINISHED)
        return min(self._settled.values(), key=worst_first.index)

    def step(self, event: SupervisorEvent) -> list[SupervisorEffect]:
        """Take an event; return what is to be done, in order."""
        match event:
            case RegionSettled():
                return self._has_settled(event)
            case CheckpointsKept():
                return self._kept(event)
            case RegionRestarted():
                return [ReportFailover(self._report(event))]
            case RegionsSeen():
                return self._seen(event)
            case _:
                assert_never(event)

    def _has_settled(self, event: RegionSettled) -> list[SupervisorEffect]:
        assert event.region not in self._settled, f"{event.region} has ended before"
        self._settled[event.region] = event.outcome
        if event.outcome is Outcome.FINISHED:
            return [EndLog(log) for log in self._regions[event.region].writes]
        if event.outcome is Outcome.FAILED:
            return [StopRegion(name) for name in self._regions if name not in self._settled]
        return []

    def _kept(self, event: CheckpointsKept) -> list[SupervisorEffect]:
        effects: list[SupervisorEffect] = []
        for log in self._regions[event.region].reads:
            needed = self._needed[log]
            needed[event.region] = min((need[log] for need in event.needs), default=0)
            below = min(needed.values())
            if below > self._trimmed[log]:
                self._trimmed[log] = below
                effects.append(TrimLog(log, below))
        return effects

    def _report(self, event: RegionRestarted) -> str:
        back = f"chk-{event.checkpoint}" if event.checkpoint else "its beginning"
        others = [n for n in self._regions if n != event.region and n not in self._settled]
        stayed = f"; {', '.join(others)} went on" if others else ""
        return (
            f"region {event.region} went back to {back} and reads about {event.rows} records once"
            f" more, because {event.reason}{stayed}"
        )

    def _seen(self, event: RegionsSeen) -> list[SupervisorEffect]:
        if self._gave_up:
            return []
        try:
            back = going_back(self._regions, event.regions, event.logs)
        except NoConsistentChoice as none:
            self._gave_up = True
            return [GiveUp(cannot_go_back(none))]
        # A region that has ended goes back when the job starts again.
        back = [each for each in back if each.region not in self._settled]
        if not back:
            return []
        reports = [ReportFailover(went_back(each, self._regions[each.region])) for each in back]
        return [RollBack({each.region: each.checkpoint for each in back}), *reports]

    def check(self) -> None:
        """Assert every invariant."""
        assert self._settled.keys() <= self._regions.keys(), "a region that is none has ended"

    def describe(self) -> str:
        """The whole state as stable text."""
        logs = [
            f"{log}: trimmed {self._trimmed[log]}, needed {dict(sorted(needed.items()))}"
            for log, needed in sorted(self._needed.items())
        ]
        ended = {name: outcome.value for name, outcome in sorted(self._settled.items())}
        return "\n".join([f"ended {ended}", *logs])


def went_back(back: GoingBack, spec: RegionSpec) -> str:
    """Say that a region went back because another one did, and what cannot be undone."""
    why = "; ".join(back.reasons)
    text = f"region {back.region} went back to chk-{back.checkpoint}, because {why}"
    if not spec.sinks:
        return text
    return f"{text}; what {', '.join(spec.sinks)} committed later will be written once more"


def cannot_go_back(none: NoConsistentChoice) -> str:
    """Say that regions cannot go on together, and what to do."""
    return (
        f"region {none.reason.processor} has no checkpoint to which it can go back: "
        f"{told(none.reason)}; hr.Checkpoints(retain=...) keeps older ones, and fresh=True begins"
        " the job anew"
    )
