"""The worker machine: control messages, peers' frames and ends of effects of one worker process.

A worker holds at most one attempt. Events of another epoch are dropped and counted: late work of an
abandoned attempt, frames of a zombie, a late answer of storage. A `Deploy` of a higher epoch ends
the attempt at once (running user code is abandoned, not waited for) and loads the next; `Start`
connects the peers and lets the subtasks begin.

Any broken invariant, lost peer or failed work ends the attempt: the worker reports it once and
waits for the next `Deploy`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum
from typing import assert_never

from headrace.channels.buffer import ChannelId
from headrace.channels.events import Barrier, CheckpointMode

from ..contract import messages as m
from ..contract.execution import ExecutionPlan, SubtaskId
from .attempt import Attempt, AttemptEffect
from .subtask import Subtask
from .subtask_events import (
    CheckpointCancelled,
    CheckpointCompleted,
    DeclineCheckpoint,
    DiskExceeded,
    InputDrained,
    PartStored,
    SubtaskFinished,
    WaveBegan,
)
from .subtask_spec import Limits, SubtaskSpec
from .wiring import subtask_specs
from .worker_events import (
    AttemptLoaded,
    AttemptLoadFailed,
    CheckpointPersisted,
    CheckpointPersistFailed,
    ConfirmCheckpoint,
    ConnectPeers,
    ControlLost,
    ControlReceived,
    DataFrame,
    DropAttempt,
    FramesReceived,
    GiveUpCheckpoint,
    LoadAttempt,
    OperatorsOpened,
    PeerConnected,
    PeerLost,
    PeerTook,
    ReadCorrupt,
    ReadEnded,
    Report,
    SpillEnded,
    StopWorker,
    TimePassed,
    WorkEnded,
    WorkerEffect,
    WorkerEvent,
    WorkFailed,
)


class Phase(Enum):
    """Where the worker stands with its attempt."""

    IDLE = "idle"
    LOADING = "loading"
    #: Loaded; frames of faster peers are kept until `RUNNING`.
    READY = "ready"
    CONNECTING = "connecting"
    RUNNING = "running"
    #: It failed and said so; waits for the next Deploy.
    FAILED = "failed"
    STOPPED = "stopped"


class Worker:
    """Machine of one worker."""

    def __init__(
        self,
        me: int,
        plan: ExecutionPlan,
        limits: Limits,
        heartbeat_ns: int,
    ) -> None:
        self.me = me
        self.phase = Phase.IDLE
        #: Events dropped because of their epoch.
        self.fenced = 0
        self._plan = plan
        self._limits = limits
        self._heartbeat_ns = heartbeat_ns
        # From the first moment on: until all workers are there the coordinator may wait for longer
        # than it bears silence.
        self._heartbeat_at_ns: int | None = 0
        self._epoch = 0
        self._attempt: Attempt | None = None
        self._deploy: m.Deploy | None = None
        #: Peers not yet connected.
        self._missing: set[int] = set()
        #: Peers connected before `Start` came.
        self._early: set[int] = set()
        #: Frames that came before this worker ran, in order.
        self._kept: list[DataFrame] = []
        #: What the coordinator said of checkpoints before this worker ran, in order.
        self._held: list[m.ToWorker] = []
        #: The attempt has dropped a record. The user hears of it at once, and of the last ones.
        self._drops = False
        self._now_ns = 0
        #: When the attempt began to load, and when the operators of each subtask were open.
        self._loading_ns = 0
        self._opened_ns: dict[SubtaskId, int] = {}

    # --- the verbs --------------------------------------------------------------------------------

    def step(self, event: WorkerEvent, now_ns: int) -> list[WorkerEffect]:
        """Take one event; effects are to be performed in order.

        A broken invariant ends the attempt, not the worker.
        """
        self._now_ns = max(now_ns, self._now_ns)
        if self.phase is Phase.STOPPED:
            return []
        try:
            return self._step(event)
        except AssertionError as broken:
            return self._fail(f"broken invariant: {broken}", self.describe(), fatal=False)

    def next_deadline_ns(self) -> int | None:
        """When `TimePassed` is wanted."""
        deadlines = [self._heartbeat_at_ns]
        if self._attempt is not None and self.phase is Phase.RUNNING:
            deadlines.append(self._attempt.deadline_ns())
        return min((d for d in deadlines if d is not None), default=None)

    def check(self) -> None:
        """Assert every invariant."""
        running = self.phase in (Phase.READY, Phase.CONNECTING, Phase.RUNNING)
        assert running == (self._attempt is not None), self.phase
        if self._attempt is not None:
            self._attempt.check()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait in all gates and subpartitions."""
        subtasks = {} if self._attempt is None else self._attempt.subtasks
        return sum(subtask.queued_bytes for subtask in subtasks.values())

    def replays(self, subtask: SubtaskId) -> bool:
        """The subtask works on records of its replay."""
        return self._attempt is not None and self._attempt.subtasks[subtask].replays

    def floors(self) -> dict[ChannelId, int] | None:
        """See `Attempt.floors`; None also without an attempt."""
        return None if self._attempt is None else self._attempt.floors()

    def describe(self) -> str:
        """The whole state as stable text."""
        head = f"worker {self.me} epoch={self._epoch} {self.phase.value} fenced={self.fenced}"
        if self._attempt is None:
            return head
        return "\n".join([head, *(s.describe() for s in self._attempt.subtasks.values())])

    # --- events -----------------------------------------------------------------------------------

    def _step(self, event: WorkerEvent) -> list[WorkerEffect]:
        match event:
            case ControlReceived(message):
                return self._control(message)
            case ControlLost(reason):
                return self._stop(f"the coordinator is gone: {reason}", clean=False)
            case TimePassed():
                return self._time_passed()
            case _:
                if event.epoch != self._epoch or self.phase in (Phase.IDLE, Phase.FAILED):
                    self.fenced += 1
                    return []
        match event:
            case AttemptLoaded():
                return self._loaded(event.hearing)
            case OperatorsOpened():
                self._opened_ns[event.subtask] = self._now_ns
                return []
            case AttemptLoadFailed():
                return self._load_failed(event)
            case PeerConnected():
                return self._peer_connected(event.worker)
            case PeerLost():
                reason = f"connection to worker {event.worker} lost: {event.reason}"
                return self._fail(reason, "", fatal=False)
            case FramesReceived():
                return self._frames(event.frames)
            case PeerTook(_, worker, size_bytes, dry):
                taken = self._running().taken(worker, size_bytes, self._now_ns, dry=dry)
                return self._translate(taken)
            case WorkEnded():
                return self._work_ended(event)
            case WorkFailed():
                return self._fail(event.reason, event.details, fatal=event.fatal)
            case ReadEnded():
                return self._translate(
                    self._running().step(event.subtask, event.read, self._now_ns)
                )
            case SpillEnded():
                return self._translate(
                    self._running().step(event.subtask, event.used, self._now_ns)
                )
            case ReadCorrupt():
                effects = self._drop()
                self.phase = Phase.FAILED
                return [*effects, Report(m.DeployFailed(self._epoch, event.reason))]
            case CheckpointPersisted():
                return self._persisted(event)
            case CheckpointPersistFailed():
                return [Report(m.Decline(self._epoch, event.checkpoint, event.reason))]
            case _:
                assert_never(event)

    def _control(self, message: m.ToWorker) -> list[WorkerEffect]:
        match message:
            case m.Shutdown():
                return self._stop(message.reason, clean=True)
            case m.Deploy():
                return self._deployed(message)
            case m.Abandon():
                return self._abandoned(message.epoch)
            case _:
                if message.epoch != self._epoch or self._attempt is None:
                    self.fenced += 1
                    return []
        if self.phase is not Phase.RUNNING and not isinstance(message, m.Start):
            # A subtask that is stepped begins to work, and peers that are not connected would miss
            # what it sends.
            self._held.append(message)
            return []
        match message:
            case m.Start():
                return self._connect()
            case m.Drain():
                return self._to_all(InputDrained(), sources=True)
            case m.ProbeLoop():
                return [self._probed(message)]
            case m.EndLoop():
                return self._translate(self._attempt.end_loop(message.task, self._now_ns))
            case m.BeginWave():
                return self._to_all(WaveBegan(message.wave), sources=False)
            case m.Trigger():
                barrier = Barrier(
                    message.checkpoint, CheckpointMode(message.mode), message.created_ns
                )
                triggered = self._attempt.trigger(
                    barrier, message.savepoint, self._now_ns, full=message.full
                )
                return self._translate(triggered)
            case m.Completed():
                effects = self._to_all(CheckpointCompleted(message.checkpoint), sources=False)
                return [ConfirmCheckpoint(self._epoch, message.checkpoint), *effects]
            case m.Cancelled():
                self._attempt.give_up(message.checkpoint)
                effects = self._to_all(CheckpointCancelled(message.checkpoint), sources=False)
                return [GiveUpCheckpoint(self._epoch, message.checkpoint), *effects]
            case _:
                assert_never(message)

    # --- life of an attempt -----------------------------------------------------------------------

    def _deployed(self, deploy: m.Deploy) -> list[WorkerEffect]:
        if deploy.epoch <= self._epoch:
            self.fenced += 1
            return []
        effects = self._drop()
        self._epoch = deploy.epoch
        self._deploy = deploy
        self._drops = False
        self.phase = Phase.LOADING
        self._loading_ns, self._opened_ns = self._now_ns, {}
        self._heartbeat_at_ns = self._now_ns + self._heartbeat_ns
        subtasks = tuple(spec.id for spec in self._specs(deploy))
        load = LoadAttempt(
            deploy.epoch,
            deploy.checkpoint,
            deploy.job,
            deploy.origin,
            subtasks,
            tuple(deploy.restore),
        )
        return [*effects, load]

    def _abandoned(self, epoch: int) -> list[WorkerEffect]:
        if epoch != self._epoch:
            self.fenced += 1
            return []
        effects = self._drop()
        self.phase = Phase.IDLE
        return effects

    def _loaded(self, hearing: Collection[SubtaskId]) -> list[WorkerEffect]:
        assert self.phase is Phase.LOADING, self.phase
        assert self._deploy is not None
        workers = {slot: p.worker for p in self._deploy.workers for slot in p.slots}
        self._attempt = Attempt(self._epoch, self.me, self._plan, workers, self._limits.logs)
        specs = [replace(s, hears=s.id in hearing) for s in self._specs(self._deploy)]
        self._attempt.build(specs, self._loading_ns, self._opened_ns)
        self.phase = Phase.READY
        return [Report(m.Deployed(self._epoch))]

    def _load_failed(self, event: AttemptLoadFailed) -> list[WorkerEffect]:
        self.phase = Phase.FAILED
        report = Report(m.DeployFailed(self._epoch, event.reason))
        return [DropAttempt(self._epoch), report]

    def _connect(self) -> list[WorkerEffect]:
        assert self.phase is Phase.READY, self.phase
        assert self._deploy is not None
        self.phase = Phase.CONNECTING
        # One connection a pair: the lower number connects, the higher one listens.
        connect = tuple(p for p in self._deploy.workers if p.worker > self.me)
        expect = tuple(p.worker for p in self._deploy.workers if p.worker < self.me)
        self._missing = {p.worker for p in connect} | (set(expect) - self._early)
        if not self._missing:
            return self._run()
        return [ConnectPeers(self._epoch, connect, expect)]

    def _peer_connected(self, worker: int) -> list[WorkerEffect]:
        if self.phase is not Phase.CONNECTING:
            self._early.add(worker)
            return []
        self._missing.discard(worker)
        return self._run() if not self._missing else []

    def _run(self) -> list[WorkerEffect]:
        self.phase = Phase.RUNNING
        effects = self._translate(self._running().start(self._now_ns))
        held, self._held = self._held, []
        for message in held:
            effects += self._control(message)
        kept, self._kept = self._kept, []
        return effects + self._frames(kept)

    def _frames(self, frames: Sequence[DataFrame]) -> list[WorkerEffect]:
        if self.phase is not Phase.RUNNING:
            self._kept += frames
            return []
        return self._translate(self._running().frames(frames, self._now_ns))

    def _work_ended(self, event: WorkEnded) -> list[WorkerEffect]:
        effects = self._translate(self._running().step(event.subtask, event.done, self._now_ns))
        if event.done.dropped and not self._drops:
            self._drops = True
            effects.append(self._heartbeat())
        return effects

    def _persisted(self, event: CheckpointPersisted) -> list[WorkerEffect]:
        message = self._running().persisted(event, self._now_ns)
        reports: list[WorkerEffect] = [] if message is None else [Report(message)]
        if self._limits.spill is None:
            return reports
        return [*reports, *self._to_all(PartStored(event.checkpoint), sources=False)]

    def _probed(self, probe: m.ProbeLoop) -> Report:
        counts = self._running().counts(frozenset(probe.edges))
        sent, consumed = counts or (0, 0)
        return Report(m.LoopProbed(self._epoch, probe.wave, counts is not None, sent, consumed))

    def _fail(self, reason: str, details: str, *, fatal: bool) -> list[WorkerEffect]:
        effects = self._drop()
        self.phase = Phase.FAILED
        return [*effects, Report(m.AttemptFailed(self._epoch, reason, details, fatal))]

    def _stop(self, reason: str, *, clean: bool) -> list[WorkerEffect]:
        effects = self._drop()
        self.phase = Phase.STOPPED
        self._heartbeat_at_ns = None
        return [*effects, StopWorker(reason, clean)]

    def _drop(self) -> list[WorkerEffect]:
        had = self.phase not in (Phase.IDLE, Phase.FAILED)
        self._attempt = None
        self._kept, self._held, self._missing, self._early = [], [], set(), set()
        return [DropAttempt(self._epoch)] if had else []

    def _time_passed(self) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        if self._heartbeat_at_ns is not None and self._heartbeat_at_ns <= self._now_ns:
            self._heartbeat_at_ns = self._now_ns + self._heartbeat_ns
            effects.append(self._heartbeat())
        if self.phase is Phase.RUNNING:
            effects += self._translate(self._running().wake(self._now_ns))
        return effects

    # --- helpers ----------------------------------------------------------------------------------

    def _running(self) -> Attempt:
        assert self._attempt is not None, f"no attempt while {self.phase}"
        return self._attempt

    def _specs(self, deploy: m.Deploy) -> list[SubtaskSpec]:
        slots = [slot for p in deploy.workers if p.worker == self.me for slot in p.slots]
        return subtask_specs(self._plan, slots, self._limits, deploy.restore, deploy.wave)

    def _to_all(
        self,
        event: InputDrained | WaveBegan | CheckpointCompleted | CheckpointCancelled | PartStored,
        *,
        sources: bool,
    ) -> list[WorkerEffect]:
        return self._translate(self._running().step_all(event, self._now_ns, sources=sources))

    def _translate(self, effects: Sequence[AttemptEffect]) -> list[WorkerEffect]:
        """Turn effects that concern only the coordinator into reports."""
        translated: list[WorkerEffect] = []
        for effect in effects:
            match effect:
                case DeclineCheckpoint():
                    reason = f"subtask {effect.subtask}: {effect.reason}"
                    translated.append(Report(m.Decline(self._epoch, effect.checkpoint, reason)))
                case DiskExceeded(subtask, reason):
                    text = f"the loop of {self._name_of(subtask)} holds too much: {reason}"
                    return [*translated, *self._fail(text, "", fatal=True)]
                case SubtaskFinished(subtask):
                    if self._drops:  # the last numbers may never be due
                        translated.append(self._heartbeat())
                    translated.append(Report(m.TaskFinished(self._epoch, *subtask)))
                case _:
                    translated.append(effect)
        return translated

    def _heartbeat(self) -> Report:
        return Report(m.Heartbeat(self._epoch, self._numbers()))

    def _numbers(self) -> list[m.SubtaskNumbers]:
        if self._attempt is None:
            return self._numbers_of_loading()
        return [self._numbers_of(subtask) for subtask in self._attempt.subtasks.values()]

    def _numbers_of_loading(self) -> list[m.SubtaskNumbers]:
        """Operators that open, or load a model, are busy."""
        if self.phase is not Phase.LOADING or self._deploy is None:
            return []
        began_ns, now_ns = self._loading_ns, self._now_ns
        numbers = []
        for spec in self._specs(self._deploy):
            opened_ns = self._opened_ns.get(spec.id, now_ns)
            busy_ns, idle_ns = opened_ns - began_ns, now_ns - opened_ns
            call_ns = 0 if spec.id in self._opened_ns else busy_ns
            numbers.append(
                m.SubtaskNumbers(*spec.id, 0, 0, busy_ns, 0, idle_ns, 0, 0, call_ns=call_ns)
            )
        return numbers

    def _numbers_of(self, subtask: Subtask) -> m.SubtaskNumbers:
        s = subtask.statistics(self._now_ns)
        return m.SubtaskNumbers(
            task=subtask.id.task,
            subtask=subtask.id.subtask,
            rows_in=s.rows_in,
            rows_out=s.rows_out,
            busy_ns=s.busy_ns,
            backpressured_ns=s.backpressured_ns,
            idle_ns=s.idle_ns,
            queued_bytes=s.input_queued_bytes + s.output_queued_bytes,
            window_bytes=s.window_bytes,
            watermark_ns=s.watermark_ns,
            rows_late=s.rows_late,
            rows_failed=s.rows_failed,
            dropped=s.dropped,
            unspilled=self._told_of_disk(subtask.id, s.unspilled),
            inputs=[m.EdgeNumbers(edge, *room) for edge, room in s.inputs.items()],
            outputs=[m.EdgeNumbers(edge, *room) for edge, room in s.outputs.items()],
            calls=[
                m.CallNumbers(operator, s.calls.spent_ns[operator], list(counts))
                for operator, counts in s.calls.counts.items()
            ],
            call_ns=s.call_ns,
            cut=s.cut,
        )

    def _told_of_disk(self, id: SubtaskId, reason: str) -> str:
        if not reason:
            return ""
        return (
            f"{self._name_of(id)} cannot spill records to local disk: {reason};"
            " they stay in memory, and producers wait"
        )

    def _name_of(self, id: SubtaskId) -> str:
        name = " > ".join(operator.name for operator in self._plan.tasks[id.task].operators)
        return f"{name} (subtask {id.subtask})"
