"""The parts that all simulated processes of a run share: scheduler, network, storage, job, oracles.

`Process` is the common part of a worker's and a coordinator's process: a clock of its own that may
jump, a life that may end at a crash point, and a wake-up at the deadline of its machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import xxhash

from headrace.channels.events import CheckpointMode
from headrace.inflight.log import USUAL, LogLimits

from ...contract.execution import ExecutionPlan
from ...coordinator.coordinator_events import Notice
from ...worker.subtask_spec import Limits
from ..coverage import Coverage
from ..scheduler import Scheduler
from ..sink import SinkSystem
from ..watch import Observer
from .faults import Faults
from .local_disk import LocalDisk
from .network import Network
from .orphans import Orphans
from .storage import SimulatedStorage


@dataclass(frozen=True, slots=True)
class Settings:
    """The job's settings in a run; times in virtual nanoseconds.

    Attributes:
        workers: number of workers; slots are spread over the workers.
        work_ns: shortest and longest time of a piece of work.
        slow_tasks: indexes of tasks with eightfold times of work.
        log: sizes of the in-flight log, if any.
        savepoints: number of requested savepoints.
        databases: indexes of tasks with keyed state in databases.
        claim_after: another job claims the checkpoint with this position, counted from 1, in the
            order of completion; None: no job does.
        full_every: one complete checkpoint in so many shares no file with older ones; 0: none.
    """

    mode: CheckpointMode
    limits: Limits
    workers: int
    heartbeat_ns: int
    heartbeat_timeout_ns: int
    checkpoint_interval_ns: int
    checkpoint_timeout_ns: int
    tolerable_failures: int
    retain: int
    concurrent: int
    work_ns: tuple[int, int]
    slow_tasks: frozenset[int]
    log: LogLimits = USUAL
    savepoints: int = 0
    databases: frozenset[int] = frozenset()
    claim_after: int | None = None
    full_every: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """The shared parts of a run.

    `failed`: {epoch: failed records that committed work has counted}. `claim`: path of the
    checkpoint of another job that this job claims; empty: none. `run`: token of the job in its
    directory.
    """

    scheduler: Scheduler
    faults: Faults
    coverage: Coverage
    network: Network
    storage: SimulatedStorage
    sinks: SinkSystem
    plan: ExecutionPlan
    settings: Settings
    watch: Observer
    disk: LocalDisk
    orphans: Orphans
    failed: Counter[int] = field(default_factory=Counter)
    claim: str = ""
    run: str = "first"


class Process:
    """A process with a clock of its own.

    Attributes:
        alive: neither crashed nor ended.
        paused: alive, but frozen; calls to the outside go on, and messages wait.
    """

    def __init__(self, env: Environment, name: str, ended: Callable[[], None]) -> None:
        self.env = env
        self.name = name
        self.alive = True
        self.paused = False
        self._held: list[Callable[[], None]] = []
        self._ended = ended
        self._clock_offset_ns = 0
        self._clock_highest_ns = 0
        self._wake_at_ns: int | None = None

    # --- the clock --------------------------------------------------------------------------------

    def clock_ns(self) -> int:
        """Return the time by this process's clock."""
        return self.env.scheduler.now_ns + self._clock_offset_ns

    def jump_clock(self, by_ns: int) -> None:
        """Set the clock; deadlines follow the clock."""
        self._clock_highest_ns = max(self._clock_highest_ns, self.clock_ns())
        self._clock_offset_ns += by_ns
        self._wake_later()

    def mend_clock(self) -> None:
        """Move the clock up to the latest reading, if behind."""
        behind_ns = self._clock_highest_ns - self.clock_ns()
        if behind_ns > 0:
            self._clock_offset_ns += behind_ns
            self._wake_later()

    def next_deadline_ns(self) -> int | None:
        """Return the machine's next deadline, by the process's clock."""
        raise NotImplementedError

    def wake(self) -> None:
        """The deadline has come."""
        raise NotImplementedError

    def _wake_later(self) -> None:
        deadline_ns = self.next_deadline_ns()
        if deadline_ns is None or not self.alive:
            self._wake_at_ns = None
            return
        at_ns = max(deadline_ns - self._clock_offset_ns, self.env.scheduler.now_ns)
        if at_ns != self._wake_at_ns:
            self._wake_at_ns = at_ns
            self.env.scheduler.at(at_ns, lambda: self._woken(at_ns))

    def _woken(self, at_ns: int) -> None:
        if not self.alive or self._wake_at_ns != at_ns:
            return
        self._wake_at_ns = None
        deadline_ns = self.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.clock_ns():
            self.when_awake(self.wake)
        else:
            self._wake_later()

    # --- pauses -----------------------------------------------------------------------------------

    def pause(self, duration_ns: int) -> None:
        """Freeze for a while."""
        self.paused = True
        self.env.scheduler.trace(f"{self.name} pauses")
        self.env.scheduler.after(duration_ns, self._resume)

    def when_awake(self, action: Callable[[], None]) -> None:
        """Call now, or at the end of the pause."""
        if self.paused:
            self._held.append(action)
        else:
            action()

    def _resume(self) -> None:
        self.paused = False
        self.env.scheduler.trace(f"{self.name} wakes up")
        held, self._held = self._held, []
        for action in held:
            action()

    # --- life -------------------------------------------------------------------------------------

    def reached(self, point: str) -> bool:
        """Come to a crash point; True: the process has died before the effect."""
        if not self.env.faults.awaits(point):
            return not self.alive
        self.env.faults.reached(point)
        return self._crash_at(point, after=False)

    def passed(self, point: str) -> bool:
        """Leave a crash point; True: the process has died after the effect."""
        if not self.env.faults.awaits(point):
            return not self.alive
        return self._crash_at(point, after=True)

    def _crash_at(self, point: str, *, after: bool) -> bool:
        if self.alive and self.env.faults.freezes(point, after=after):
            self.freeze()
        if self.alive and self.env.faults.crashes(point, after=after):
            self.die(host=False, why=f"crashed {'after' if after else 'before'} {point}")
        return not self.alive

    def freeze(self) -> None:
        """Freeze at a point of the fault profile; for coordinators."""

    def die(self, *, host: bool, why: str) -> None:
        """Stop at once; if its host dies too, no peer is told."""
        if not self.alive:
            return
        self.alive = False
        self.env.scheduler.trace(f"{self.name} {why}")
        self.env.network.vanish(self, host=host)  # type: ignore[arg-type]  # subclasses are endpoints
        self.gone()
        self._ended()

    def gone(self) -> None:
        """Drop everything that dies with a process; for subclasses."""


_SHOWN = ("epoch", "worker", "subtask", "checkpoint", "channel", "reason")
#: {type: makes its short name}: asked for every event and effect of a run.
_shown_of: dict[type, Callable[[Any], str]] = {}


def shown(value: Any) -> str:
    """A short name for an event, effect or message in the trace."""
    show = _shown_of.get(type(value))
    if show is None:
        show = _shown_of[type(value)] = _shower(value)
    return show(value)


def _shower(value: Any) -> Callable[[Any], str]:
    """Return a function that makes short names for values of this type."""
    name = type(value).__name__
    if hasattr(value, "message") and not isinstance(value.message, str):
        return lambda value: f"{name}({type(value.message).__name__})"
    if isinstance(value, Notice):
        return _shown_notice
    fields = [field for field in _SHOWN if hasattr(value, field)]
    template = f"{name}({' '.join(f'{field}={{0.{field}!s}}' for field in fields)})"
    return template.format if fields else lambda value: template


def _shown_notice(notice: Notice) -> str:
    """Metadata as a digest: in words it would take longer than the step."""
    digest = xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(notice.checkpoint))
    return f"Notice({notice.kind.value} {digest if notice.checkpoint else ''})"
