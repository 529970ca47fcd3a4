"""A worker process of a small scope: the worker machine and its driver's knowledge, as a value.

`WorkerState.step` handles effects as `worker_process.py` does, without time: lengthy work becomes a
`Pending`, whose end is an event like any other. Effects on other processes come back as outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from msgspec import structs

from headrace.channels.buffer import Buffer
from headrace.channels.wire import CreditFrame
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.writer import AdHoc, Piece
from headrace.recovery.handles import StateHandle
from headrace.recovery.layout import handle_path, segment_path

from ...contract import messages as m
from ...contract.execution import ExecutionPlan, SubtaskId
from ...drivers.persistence import CheckpointStored, CheckpointWrite, Persistence
from ...storage.databases import StoredFiles
from ...storage.snapshots import Written
from ...worker import worker_events as w
from ...worker.subtask import Subtask
from ...worker.subtask_events import (
    BufferRead,
    CapturedRun,
    CommitWork,
    LogBuffer,
    ReadBuffer,
    RunWork,
    TakeSnapshot,
    UseDisk,
)
from ...worker.worker import Worker
from ...worker.worker_events import (
    PersistCheckpoint,
    SendFrame,
)
from .interning import in_order
from .small_scope import NEVER_NS, UNLIMITED_BYTES, Contents, Rows, Scope, SmallTask


@dataclass(frozen=True, slots=True)
class Output:
    """A step's effect outside the process: `kind` names the effect, `value` is its data."""

    kind: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Pending:
    """Work under way in another thread; its end is an event.

    `epoch`: the attempt that ordered the work.
    """

    epoch: int
    what: w.LoadAttempt | RunWork | CheckpointWrite | ReadBuffer

    def reads(self) -> tuple[str, ...]:
        """The files to read."""
        match self.what:
            case w.LoadAttempt(restore=restore):
                return tuple(sorted({h.path for s in restore for h in s.states}))
            case ReadBuffer(_, order):
                return (order.handle.path,)
            case _:
                return ()

    def name(self) -> str:
        """For traces."""
        match self.what:
            case RunWork(subtask, _, work):
                return f"{subtask} {type(work).__name__}"
            case CheckpointWrite(checkpoint=checkpoint):
                return f"file of chk-{checkpoint}"
            case _:
                return type(self.what).__name__


@dataclass(slots=True)
class WorkerState:
    """A worker process. `link`: the epoch of the open data connection; 0: none."""

    scope: Scope
    plan: ExecutionPlan
    contents: Contents
    machine: Worker
    clock_ns: int = 0
    link: int = 0
    stopped: bool = False
    tasks: dict[SubtaskId, SmallTask] = field(default_factory=dict)
    persistence: Persistence = field(default_factory=lambda: _persistence())
    pending: list[Pending] = field(default_factory=list)

    @staticmethod
    def begin(scope: Scope, plan: ExecutionPlan, contents: Contents, number: int) -> WorkerState:
        """Return a new process."""
        machine = Worker(number, plan, scope.limits(), NEVER_NS)
        machine._heartbeat_at_ns = None
        return WorkerState(scope, plan, contents, machine)

    # --- what may happen --------------------------------------------------------------------------

    def timer_due(self) -> bool:
        """The clock may come to the next deadline."""
        deadline_ns = self.machine.next_deadline_ns()
        return deadline_ns is not None and deadline_ns < NEVER_NS

    def pass_time(self) -> list[Output]:
        """The clock comes to the next deadline."""
        deadline_ns = self.machine.next_deadline_ns()
        assert deadline_ns is not None, "nobody waits"
        self.clock_ns = max(self.clock_ns, deadline_ns)
        return self.step(w.TimePassed())

    def end(self, place: int, missing: Sequence[str]) -> list[Output]:
        """End the pending work at `place`. `missing`: absent files to read."""
        pending = self.pending.pop(place)
        match pending.what:
            case w.LoadAttempt():
                return self._loaded(pending.what, missing)
            case RunWork(subtask, number, work):
                done = self.tasks[subtask].run(number, work)
                outputs = self._prepare(subtask)
                return outputs + self.step(w.WorkEnded(pending.epoch, subtask, done))
            case CheckpointWrite():
                return self._written(pending.what)
            case ReadBuffer(subtask, order):
                if missing:
                    return self.step(w.ReadCorrupt(pending.epoch, f"{missing} are missing"))
                handle = order.handle
                rows: Rows = self.contents.value(handle.offset)
                rest = rows.slice(handle.start, handle.rows).slice(handle.skip)
                answer = BufferRead(order.number, rest)
                return self.step(w.ReadEnded(pending.epoch, subtask, answer))
            case _:
                assert_never(pending.what)

    def step(self, event: w.WorkerEvent) -> list[Output]:
        """Give the machine an event and perform its effects."""
        outputs: list[Output] = []
        effects = self.machine.step(event, self.clock_ns)
        self.machine.check()
        if self.machine._attempt is not None and forgets_credit(self.scope):
            for subtask in self.machine._attempt.subtasks.values():
                _give_endless_credit(subtask)
        for effect in effects:
            self._perform(effect, outputs)
        return outputs

    # --- effects ----------------------------------------------------------------------------------

    def _perform(self, effect: w.WorkerEffect, outputs: list[Output]) -> None:
        match effect:
            case RunWork() | ReadBuffer():
                self.pending.append(Pending(self.machine._epoch, effect))
            case LogBuffer():
                pass  # in-flight data is written by checkpoints
            case CommitWork(subtask):
                self.tasks[subtask].commit()
            case SendFrame(epoch, _, frame):
                forgotten = isinstance(frame, CreditFrame) and forgets_credit(self.scope)
                if self.link == epoch and not forgotten:
                    outputs.append(Output("peer", ("frame", epoch, frame)))
            case TakeSnapshot(subtask, checkpoint):
                task = self.tasks[subtask]
                frozen: Any = ((str(subtask.task), task.state),)
                self.persistence.freeze(checkpoint, subtask, frozen, 0)
            case w.ConfirmCheckpoint():
                self.persistence.confirmed(effect.checkpoint)
            case PersistCheckpoint():
                self._persist(effect)
            case w.GiveUpCheckpoint():
                self.persistence.given_up(effect.checkpoint)
            case w.Report(message):
                outputs.append(Output("coordinator", _timeless(message)))
            case w.LoadAttempt():
                self._drop()
                self.pending.append(Pending(effect.epoch, effect))
            case w.DropAttempt(epoch):
                self._drop()
                if self.link == epoch:
                    self.link = 0
                    outputs.append(Output("unlink", epoch))
            case w.ConnectPeers(epoch, connect, _):
                if connect:
                    self.link = epoch
                    outputs.append(Output("link", epoch))
            case w.StopWorker():
                self.stopped = True
                outputs.append(Output("stopped"))
            case UseDisk():
                raise AssertionError("small jobs spill nothing")
            case _:
                assert_never(effect)

    def _drop(self) -> None:
        """Drop work of epochs that the machine no longer hears."""
        self.pending, self.tasks = [], {}
        self.persistence = _persistence()

    def _prepare(self, subtask: SubtaskId) -> list[Output]:
        task = self.tasks[subtask]
        prepared, task.prepared = task.prepared, None
        return [] if prepared is None else [Output("prepare", prepared)]

    def _loaded(self, load: w.LoadAttempt, missing: Sequence[str]) -> list[Output]:
        if missing:
            failed = w.AttemptLoadFailed(load.epoch, f"{missing} are missing")
            return self.step(failed)
        states: dict[SubtaskId, Any] = {
            SubtaskId(s.task, s.index): self.contents.value(handle.offset)
            for s in load.restore
            for handle in s.states
        }
        for id in load.subtasks:
            self.tasks[id] = SmallTask(self.scope, id, load.epoch, states.get(id))
        return self.step(w.AttemptLoaded(load.epoch))

    # --- checkpoints ------------------------------------------------------------------------------

    def _persist(self, effect: PersistCheckpoint) -> None:
        self.persistence.persist(effect)
        for order in self.persistence.ready(self.machine.floors):
            assert not isinstance(order, Piece), "nothing is logged"
            self.pending.append(Pending(self.machine._epoch, order))

    def _written(self, order: CheckpointWrite) -> list[Output]:
        path = segment_path(self.plan.job, order.checkpoint, self.machine.me, order.epoch)
        shown = handle_path(self.plan.job, path)
        states: dict[SubtaskId, list[Any]] = {
            id: [self._state(shown, id, value) for _, value in pieces]
            for id, pieces in order.snapshots.items()
        }
        inflight = {
            cut.subtask: [*(self._run(shown, run, order) for run in cut.inflight), *cut.replay]
            for cut in order.cuts
        }
        done = CheckpointStored(order, Written(states, inflight), 0)
        self.persistence.stored(done)
        return [Output("put", path), *self.step(done.event())]

    def _state(self, path: str, id: SubtaskId, value: Hashable) -> StateHandle:
        number, name = self.contents.number(value), self.plan.tasks[id.task].name
        return StateHandle(name, "state", "list", path, number, 1, "0" * 16, 1)

    def _run(self, path: str, run: CapturedRun, order: CheckpointWrite) -> ChannelStateHandle:
        buffers: list[BufferHandle] = []
        for piece in order.index.split(run.channel, run.buffers):
            if isinstance(piece, BufferHandle):
                buffers.append(piece)
                continue
            buffers_of = [item for item in piece if isinstance(item, Buffer)]
            rows = Rows(tuple(id for b in buffers_of for part in b.parts for id in part.ids))
            number = self.contents.number(rows)
            count = rows.num_rows
            buffers.append(BufferHandle(path, number, 1, "0" * 16, count, 0, count))
        channel = run.channel
        return ChannelStateHandle(
            channel.edge,
            channel.producer,
            channel.consumer,
            run.side,
            run.first,
            buffers,
            run.ended,
        )


class _Files(StoredFiles):
    """Files of a worker without databases: nothing is stored, and each copy has its own lock."""

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_changed"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _changed=threading.Condition())


def _persistence() -> Persistence:
    made = Persistence(AdHoc())
    made.files = _Files()
    return made


def _timeless(message: m.ToCoordinator) -> m.ToCoordinator:
    """Drop durations: no decision depends on durations."""
    if not isinstance(message, m.Acknowledge):
        return message
    subtasks = [structs.replace(s, start_delay_ns=0, alignment_ns=0) for s in message.subtasks]
    return structs.replace(message, subtasks=subtasks)


def without_history(state: WorkerState) -> None:
    """Forget data that no later step reads: counters, times, orders without meaning."""
    state.machine.fenced = 0
    state.pending.sort(key=lambda p: (type(p.what).__name__, p.epoch, repr(_identity(p.what))))
    writes = state.persistence._writes
    state.persistence._writes = dict(sorted(writes.items()))
    for write in writes.values():
        write.snapshots = dict(sorted(write.snapshots.items()))
        write.sync_ns = dict(sorted(write.sync_ns.items()))
    attempt = state.machine._attempt
    if attempt is not None:
        attempt._deadlines = dict(sorted(attempt._deadlines.items()))
    for checkpoint in () if attempt is None else attempt._checkpoints._open.values():
        checkpoint.cuts.sort(key=lambda cut: cut.subtask)
    for subtask in () if attempt is None else attempt.subtasks.values():
        pace = subtask._pace
        pace.busy_ns = pace.backpressured_ns = pace.idle_ns = pace._last_ns = 0
        pace.rows_in = pace.rows_out = 0
        # Which barrier came, or left, when: only `holds` say so.
        captures = subtask._cuts._captures
        subtask._cuts._captures = dict(sorted(captures.items()))
        for capture in captures.values():
            if capture.taken_ns is not None:
                capture.taken_ns = 0
            capture.arrived_ns, capture.left, capture.alignment_ns = {}, None, 0
            capture.pending = in_order(capture.pending)
            capture.outgoing = in_order(capture.outgoing)
            capture.input_ends = in_order(capture.input_ends)
        alignment = subtask._cuts._alignment
        if alignment is not None:
            alignment._channels = frozenset(in_order(alignment._channels))
            for pending in alignment._pending.values():
                pending.delivered = in_order(pending.delivered)


def forgets_credit(scope: Scope) -> bool:
    """Return whether credit has no end: then it limits no sender, and no message tells of it."""
    return scope.window_rows is None


def _give_endless_credit(subtask: Subtask) -> None:
    """Open the channels at both ends, also those with records to replay before them."""
    for channel in subtask._gate.channels.values():
        channel.credit.limit_bytes = UNLIMITED_BYTES
    for subpartition in subtask._subpartitions.values():
        subpartition.limit_bytes = UNLIMITED_BYTES


def _identity(what: w.LoadAttempt | RunWork | CheckpointWrite | ReadBuffer) -> Hashable:
    match what:
        case w.LoadAttempt():
            return what.epoch
        case RunWork():
            return what.subtask
        case CheckpointWrite():
            return what.checkpoint
        case ReadBuffer():
            return what.subtask, what.order.number
        case _:
            assert_never(what)
