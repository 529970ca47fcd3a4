"""Faults: their kinds and likelihoods in a run, and their end.

The seed determines the profile, so that most runs see a few kinds of fault often and not all kinds
seldom (swarm testing). All faults stop at `until_ns`; after that the world must come to rest by
itself, which checks liveness.

Crash points are targeted: a profile names some protocol points ("before WriteMetadata, the second
time"), and the first process at a point dies there.

Source: the fault model of FoundationDB and TigerBeetle's VOPR; swarm testing: Groce et al. 2012.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..coverage import Coverage
from ..scheduler import MILLISECOND_NS, Scheduler

#: Effects of the coordinator before and after which it may crash (points 1-10 and 18-21 of the
#: fault model).
COORDINATOR_POINTS = (
    "ClaimEpoch",
    "RecoverSinks",
    "Deploy",
    "Start",
    "Trigger",
    "WriteMetadata",
    "Completed",
    "CommitTransactions",
    "WithdrawCheckpoints",
    "DeleteFiles",
    "Cancelled",
    "store call",
    "sink call",
)
#: Points at which a coordinator may freeze: its own steps on storage and on sinks.
FREEZE_POINTS = (
    "ClaimEpoch",
    "RecoverSinks",
    "WriteMetadata",
    "CommitTransactions",
    "WithdrawCheckpoints",
    "DeleteFiles",
    "store call",
    "sink call",
)
#: Effects of a worker before and after which it may crash (points 11-17 and 22).
WORKER_POINTS = (
    "LoadAttempt",
    "Deployed",
    "ConnectPeers",
    "RunWork",
    "CommitWork",
    "SendFrame",
    "TakeSnapshot",
    "ReadBuffer",
    "PersistCheckpoint",
    "Acknowledge",
    "TaskFinished",
    "PrecommitWork",
    "DropAttempt",
)


class CrashPoint(NamedTuple):
    """A crash before or after the `occurrence`-th performance of the effect named `effect`."""

    effect: str
    after: bool
    occurrence: int

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.effect}"


#: Coverage names of all crash points.
CRASH_POINT_NAMES = tuple(
    f"crash {when} {effect}"
    for effect in COORDINATOR_POINTS + WORKER_POINTS
    for when in ("before", "after")
)


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """Likelihoods of the faults.

    Rates are expected numbers of occurrences in the run; odds are per call, 0 to 1.

    Attributes:
        until_ns: end of all faults.
        crash_points: targeted deaths of processes.
        freezes: points at which a coordinator freezes, while one or two others work.
        worker_crashes, coordinator_crashes: rates of deaths at random times.
        pauses: rate of frozen coordinators; a supervisor starts another coordinator beside each.
        severed, half_open, partitions, clock_jumps, zombies: rates of faults of connections, clocks
            and the coordinator's door.
        network_delay_ns: the longest delay of a message on a healthy link.
        storage_delay_ns: the longest time of a call to storage.
        sink_delay_ns: the longest time of a call to the sinks' system.
        storage_rejects, storage_uncertain: odds that a call fails, without effect or with an open
            outcome.
        deletions_refused: additional odds that a deletion is refused.
        storage_full: rate of periods in which all writes fail.
        torn_writes: odds that a write under way at its process's death leaves half an object.
        spill_full: odds that the local disk is full for spilled records, for a while.
        spill_torn: odds that a spilled run reads back as damaged.
        commit_fails: odds that a call to the sink's system fails, half of the time after its
            effect.
    """

    until_ns: int = 0
    crash_points: tuple[CrashPoint, ...] = ()
    freezes: tuple[CrashPoint, ...] = ()
    worker_crashes: float = 0.0
    coordinator_crashes: float = 0.0
    severed: float = 0.0
    half_open: float = 0.0
    partitions: float = 0.0
    clock_jumps: float = 0.0
    zombies: float = 0.0
    pauses: float = 0.0
    network_delay_ns: int = MILLISECOND_NS
    storage_delay_ns: int = 4 * MILLISECOND_NS
    sink_delay_ns: int = 4 * MILLISECOND_NS
    storage_rejects: float = 0.0
    storage_uncertain: float = 0.0
    deletions_refused: float = 0.0
    storage_full: float = 0.0
    torn_writes: float = 0.0
    commit_fails: float = 0.0
    spill_full: float = 0.0
    spill_torn: float = 0.0


def no_faults() -> FaultProfile:
    """Return a profile without faults; delays vary."""
    return FaultProfile()


def draw_profile(rng: random.Random) -> FaultProfile:
    """Draw the faults of one run: each kind is on in about a third of the runs."""

    def rate(highest: float) -> float:
        return rng.uniform(0.3, highest) if rng.random() < 0.35 else 0.0

    def odds(highest: float) -> float:
        return rng.uniform(0.01, highest) if rng.random() < 0.35 else 0.0

    # Later additions are drawn apart, so that a seed keeps its other draws.
    state = rng.getstate()
    deletions_refused = odds(0.5)
    freezes = (draw_point(rng, FREEZE_POINTS),) if rng.random() < 0.1 else ()
    spill_full, spill_torn = odds(0.3), odds(0.2)
    rng.setstate(state)
    slow = rng.random() < 0.3
    return FaultProfile(
        until_ns=rng.randint(150, 900) * MILLISECOND_NS,
        crash_points=tuple(
            draw_point(rng, COORDINATOR_POINTS + WORKER_POINTS)
            for _ in range(rng.choice((0, 1, 1, 2)))
        ),
        freezes=freezes,
        worker_crashes=rate(2.0),
        coordinator_crashes=rate(1.2),
        severed=rate(2.0),
        half_open=rate(1.5),
        partitions=rate(1.5),
        clock_jumps=rate(1.5),
        zombies=rate(2.0),
        network_delay_ns=rng.choice((1, 1, 5, 20)) * MILLISECOND_NS,
        storage_delay_ns=rng.choice((80, 200) if slow else (2, 8)) * MILLISECOND_NS,
        sink_delay_ns=rng.choice((2, 8, 50, 150)) * MILLISECOND_NS,
        storage_rejects=odds(0.15),
        storage_uncertain=odds(0.15),
        deletions_refused=deletions_refused,
        storage_full=rate(1.0),
        torn_writes=0.5 if rng.random() < 0.3 else 0.0,
        commit_fails=odds(0.3),
        spill_full=spill_full,
        spill_torn=spill_torn,
    )


def draw_point(rng: random.Random, effects: Sequence[str]) -> CrashPoint:
    """Draw a crash before or after one of these effects."""
    effect = rng.choice(effects)
    often = ("RunWork", "CommitWork", "SendFrame", "TakeSnapshot", "store call")
    occurrence = rng.randint(1, 40 if effect in often else 3)
    return CrashPoint(effect, rng.random() < 0.5, occurrence)


@dataclass(slots=True)
class Faults:
    """The faults of a run in progress."""

    profile: FaultProfile
    scheduler: Scheduler
    coverage: Coverage
    #: {effect: how often it was performed}
    _performed: Counter[str] = field(default_factory=Counter)
    _full_until_ns: int = 0
    #: Effects at which a process dies some time; the others need not be counted.
    _points: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        points = self.profile.crash_points + self.profile.freezes
        self._points = frozenset(point.effect for point in points)

    @property
    def active(self) -> bool:
        """Faults have not stopped yet."""
        return self.scheduler.now_ns < self.profile.until_ns

    @property
    def network_delay_ns(self) -> int:
        """The longest delay of a message now."""
        return self.profile.network_delay_ns if self.active else MILLISECOND_NS

    @property
    def sink_delay_ns(self) -> int:
        """The longest time of a call to the sinks' system now."""
        return self.profile.sink_delay_ns if self.active else 2 * MILLISECOND_NS

    @property
    def storage_delay_ns(self) -> int:
        """The longest time of a call to storage now."""
        return self.profile.storage_delay_ns if self.active else 2 * MILLISECOND_NS

    def happens(self, odds: float) -> bool:
        """Draw whether a fault of these odds happens now."""
        return odds > 0.0 and self.active and self.scheduler.rng.random() < odds

    def awaits(self, effect: str) -> bool:
        """Some process dies or freezes at this effect some time; others are passed by."""
        return effect in self._points

    def reached(self, effect: str) -> None:
        """A process is about to perform `effect`; asked once, before `crashes`."""
        if effect in self._points:
            self._performed[effect] += 1

    def crashes(self, effect: str, *, after: bool) -> bool:
        """Whether the process dies at this point."""
        if effect not in self._points or not self.active:
            return False
        point = CrashPoint(effect, after, self._performed[effect])
        if point not in self.profile.crash_points:
            return False
        self.coverage.count(f"crash {point}")
        return True

    def freezes(self, effect: str, *, after: bool) -> bool:
        """Whether the coordinator freezes at this point."""
        if not self.active:
            return False
        point = CrashPoint(effect, after, self._performed[effect])
        if point not in self.profile.freezes:
            return False
        self.coverage.count(f"coordinator frozen {point}")
        return True

    def fill_storage(self, duration_ns: int) -> None:
        """Refuse all writes for a while."""
        self._full_until_ns = self.scheduler.now_ns + duration_ns

    @property
    def storage_is_full(self) -> bool:
        """Writes are refused now."""
        return self.active and self.scheduler.now_ns < self._full_until_ns
