"""A simulated worker process: the worker machine, driven in virtual time.

It does with effects what `runtime/worker_driver.py` does, with the same chains, snapshots and messages. What runs in another thread there
takes virtual time here: the chain's call happens when the work starts or when it ends, as drawn, and its end is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, assert_never

from headrace.inflight.writer import Piece
from headrace.recovery.layout import CheckpointKind, owner
from headrace.recovery.store import StoreError

from ..coordination import messages as m
from ..operators.chain import Chain
from ..runtime import worker_protocol as w
from ..runtime.attempt import PersistCheckpoint, SendFrame
from ..runtime.log_files import PieceWritten
from ..runtime.persistence import CheckpointWrite, Persistence, persistence_of
from ..runtime.snapshots import (
    CorruptState,
    Foreign,
    Written,
    passes_of,
    read_buffer,
    write_checkpoint,
)
from ..runtime.work import (
    CommitWork,
    LogBuffer,
    PrecommitWork,
    ReadReplay,
    ReplayBufferRead,
    RunWork,
    SubtaskId,
    TakeSnapshot,
    Work,
    WorkDone,
)
from ..runtime.worker import Worker
from .chains import open_chain, run_work, states_of
from .environment import Environment, Process, shown
from .log_files import SimulatedLogFiles
from .promptness import SLOWNESS
from .scheduler import MICROSECOND_NS, MILLISECOND_NS
from .storage import Call, FaultyReads, PutCatcher, answer_call, crash_during


class PeerGreeting(NamedTuple):
    """What a worker says of itself on a data connection."""

    epoch: int
    worker: int


@dataclass(slots=True)
class _Task:
    """A subtask's thread: its chain, and what it runs."""

    chain: Chain
    running: tuple[Work, WorkDone] | None = None
    busy: bool = False


@dataclass(slots=True)
class _Loaded:
    """The operators of one attempt."""

    epoch: int
    persistence: Persistence
    tasks: dict[SubtaskId, _Task] = field(default_factory=dict)
    #: Whose checkpoint the attempt was restored from, if it is not the job's own.
    foreign: Foreign | None = None
    abandoned: bool = False
    #: Checkpoints that were given up.
    given_up: set[int] = field(default_factory=set)


class WorkerProcess(Process):
    """One incarnation of one worker.

    Args:
        coordinator: the address to register at.
        address: where peers find it.
        ended: called once, when it is dead.
    """

    def __init__(
        self,
        env: Environment,
        number: int,
        incarnation: int,
        *,
        coordinator: tuple[str, int],
        address: tuple[str, int],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(env, f"worker {number}.{incarnation}@{address[0]}", ended)
        self.number = number
        self.machine = Worker(number, env.plan, env.settings.limits, env.settings.heartbeat_ns)
        self._control = -1
        #: {connection: (epoch, worker)} of data connections, and its inverse.
        self._peers: dict[int, tuple[int, int]] = {}
        self._connections: dict[tuple[int, int], int] = {}
        self._loaded: _Loaded | None = None
        self._log_files = SimulatedLogFiles(env, self, number, self._piece_written)
        env.network.listen(address, self)
        self._control = env.network.connect(coordinator, self, None, None)
        register = m.Register(number, incarnation, *address, 0)
        self._report(register)

    # --- the driver's loop --------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """See `Process`."""
        return self.machine.next_deadline_ns()

    def wake(self) -> None:
        """See `Process`."""
        self._step(w.TimePassed())

    def _step(self, event: w.WorkerEvent) -> None:
        if not self.alive:
            return
        fenced = self.machine.fenced
        effects = self.machine.step(event, self.clock_ns())
        self.env.scheduler.trace(f"{self.name}: {shown(event)} -> {_names(effects)}")
        self.machine.check()
        self.env.coverage.count("events fenced by workers", self.machine.fenced - fenced)
        for effect in effects:
            point = _point_of(effect)
            if self.reached(point):
                return
            self._perform(effect)
            if self.passed(point):
                return
        self._wake_later()

    # --- the network --------------------------------------------------------------------------------------------

    def connected(self, connection: int, greeting: Any) -> None:
        """See `Endpoint`."""
        if connection == self._control:
            return
        epoch, worker = greeting
        self._peers[connection] = (epoch, worker)
        self._connections[epoch, worker] = connection
        self._step(w.PeerConnected(epoch, worker))

    def received(self, connection: int, message: Any) -> None:
        """See `Endpoint`."""
        if connection == self._control:
            self._step(w.ControlReceived(m.decode_for_worker(message)))
        elif connection in self._peers:
            self._step(w.FrameReceived(*self._peers[connection], message))

    def disconnected(self, connection: int, reason: str) -> None:
        """See `Endpoint`."""
        if connection == self._control:
            self._step(w.ControlLost(reason))
            return
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._connections.pop(peer, None)
            self._step(w.PeerLost(*peer, reason))

    # --- effects ------------------------------------------------------------------------------------------------

    def _perform(self, effect: w.WorkerEffect) -> None:
        match effect:
            case RunWork(subtask, number, work):
                self._start_work(self._tasks()[subtask], subtask, number, work)
            case CommitWork(subtask):
                self._commit(subtask)
            case LogBuffer(channel, buffer):
                self._attempt().persistence.inflight.log(channel, buffer)
                self._write_ready()
            case SendFrame():
                connection = self._connections.get((effect.epoch, effect.worker))
                if connection is not None:
                    self.env.network.send(connection, self, effect.frame)
            case TakeSnapshot(subtask, checkpoint):
                self._snapshot(subtask, checkpoint)
            case ReadReplay():
                self._read_replay(effect)
            case w.ConfirmCheckpoint():
                self._attempt().persistence.inflight.confirmed(effect.checkpoint)
            case PersistCheckpoint():
                self._attempt().persistence.persist(effect)
                self._write_ready()
            case w.DiscardSnapshots():
                if self._loaded is not None:
                    self._loaded.persistence.discard(effect.checkpoint)
                    self._loaded.given_up.add(effect.checkpoint)
            case w.Report(message):
                self._report(message)
            case w.LoadAttempt():
                self._load(effect)
            case w.DropAttempt():
                self._drop(effect.epoch)
            case w.ConnectPeers():
                self._connect(effect)
            case w.StopWorker():
                self.die(host=False, why=f"stopped: {effect.reason}")
            case _:
                assert_never(effect)

    def _report(self, message: m.ToCoordinator) -> None:
        self.env.network.send(self._control, self, m.encode(message))

    def _tasks(self) -> dict[SubtaskId, _Task]:
        assert self._loaded is not None, "no attempt is loaded"
        return self._loaded.tasks

    def _connect(self, effect: w.ConnectPeers) -> None:
        for peer in effect.connect:
            mine = PeerGreeting(effect.epoch, self.number)
            theirs = PeerGreeting(effect.epoch, peer.worker)
            address = (peer.host, peer.port)
            connection = self.env.network.connect(address, self, mine, theirs)
            self._peers[connection] = (effect.epoch, peer.worker)

    # --- work ---------------------------------------------------------------------------------------------------

    def _start_work(self, task: _Task, subtask: SubtaskId, number: int, work: Work) -> None:
        assert not task.busy, f"{subtask}: two works at once"
        task.busy = True
        loaded = self._loaded
        assert loaded is not None, "no attempt is loaded"
        scheduler, settings = self.env.scheduler, self.env.settings
        low_ns, high_ns = settings.work_ns
        duration_ns = scheduler.rng.randint(low_ns, high_ns)
        if subtask.task in settings.slow_tasks:
            duration_ns *= SLOWNESS
        at_once = scheduler.rng.random() < 0.5
        early = self._call(task, number, work, duration_ns) if at_once else None

        def end() -> None:
            if self.alive:
                done = early or self._call(task, number, work, duration_ns)
                self._end_work(loaded, task, subtask, work, done)

        scheduler.after(duration_ns, end)

    def _call(self, task: _Task, number: int, work: Work, duration_ns: int) -> WorkDone | Exception:
        """Run the chain; the thread's counterpart, whose abandonment changes nothing for the piece that runs."""
        try:
            return run_work(task.chain, number, work, duration_ns)
        except Exception as error:
            return error

    def _end_work(
        self,
        loaded: _Loaded,
        task: _Task,
        subtask: SubtaskId,
        work: Work,
        done: WorkDone | Exception,
    ) -> None:
        task.busy = False
        if loaded.abandoned:
            task.chain.close()
        if isinstance(done, Exception):
            reason = f"{type(done).__name__}: {done}"
            self._step(w.WorkFailed(loaded.epoch, subtask, reason, "", fatal=False))
            return
        task.running = (work, done)
        self._step(w.WorkEnded(loaded.epoch, subtask, done))

    def _commit(self, subtask: SubtaskId) -> None:
        assert self._loaded is not None, "no attempt is loaded"
        task = self._loaded.tasks[subtask]
        task.chain.commit()
        assert task.running is not None, f"{subtask}: committed without work"
        work, done = task.running
        self.env.watch.committed(self._loaded.epoch, subtask, work, done.outputs)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _attempt(self) -> _Loaded:
        assert self._loaded is not None, "no attempt is loaded"
        return self._loaded

    def _snapshot(self, subtask: SubtaskId, checkpoint: int) -> None:
        loaded = self._attempt()
        states = loaded.tasks[subtask].chain.snapshot()
        loaded.persistence.freeze(checkpoint, subtask, states, 0)
        self.env.watch.cut(loaded.epoch, checkpoint, subtask)
        for operator in self.env.plan.tasks[subtask.task].operators:
            if operator.sink is not None:
                self.env.sinks.cut(loaded.epoch, checkpoint, operator.name, subtask.subtask)
        queued_bytes = sum(s.queued_bytes for s in self.machine._numbers())
        self.env.coverage.count("bytes in flight at a cut", queued_bytes)

    def _write_ready(self) -> None:
        order_epoch = self._attempt().epoch
        for order in self._attempt().persistence.ready():
            match order:
                case CheckpointWrite():
                    self._write_checkpoint(order)
                case Piece():
                    self._log_files.write(order_epoch, order)
                case _:
                    assert_never(order)

    def _piece_written(self, event: PieceWritten) -> None:
        loaded = self._loaded
        if loaded is None or loaded.epoch != event.epoch:
            self._log_files.delete(event.epoch, [event.piece])
            return
        loaded.persistence.inflight.piece_written(event.piece, event.handles)
        self._write_ready()
        self._log_files.delete(loaded.epoch, loaded.persistence.trimmed(self.machine.floors()))

    def _write_checkpoint(self, order: CheckpointWrite) -> None:
        puts, done, loaded, delay_ns = self._prepared(order)
        self.env.scheduler.after(delay_ns, lambda: self._write(puts, done, loaded))

    def _prepared(
        self, order: CheckpointWrite
    ) -> tuple[Sequence[Call], w.CheckpointPersisted, _Loaded, int]:
        """What is to be written, what to report then, for which attempt, and how long it takes."""
        loaded, catcher = self._attempt(), PutCatcher()
        saves = order.savepoint is not None
        own = Foreign(self.env.storage, self.env.plan.job)
        written = write_checkpoint(
            catcher,  # type: ignore[arg-type]  # only `put` is asked for
            self.env.plan.job,
            order.checkpoint,
            self.number,
            order.epoch,
            order.snapshots,
            order.cuts,
            order.index,
            loaded.foreign or (own if saves else None),
            kind=CheckpointKind.SAVEPOINT if saves else CheckpointKind.CHECKPOINT,
            compresses=self.env.settings.limits.compresses,
        )
        self._count_in_flight(written)
        delay_ns = self.env.scheduler.delay_ns(
            50 * MICROSECOND_NS, 2 * self.env.faults.storage_delay_ns
        )
        done = w.CheckpointPersisted(
            order.epoch,
            order.checkpoint,
            written.states,
            written.inflight,
            order.sync_ns,
            delay_ns,
        )
        return catcher.puts, done, loaded, delay_ns

    def _write(self, puts: Sequence[Call], done: w.CheckpointPersisted, loaded: _Loaded) -> None:
        """What was to be written reaches the storage; only then is it reported."""
        faults = self.env.faults
        for put in puts:
            if not self.alive:
                crash_during(faults, self.env.storage, put)
                return
            _, error = answer_call(faults, self.env.storage, put)
            if error is not None:
                self._step(w.CheckpointPersistFailed(done.epoch, done.checkpoint, str(error)))
                return
        loaded.persistence.stored(done.checkpoint, done.inflight)
        self._step(done)

    def _count_in_flight(self, written: Written) -> None:
        for handle in (h for handles in written.inflight.values() for h in handles):
            rows = sum(buffer.rows for buffer in handle.buffers)
            self.env.coverage.count(f"records persisted in flight, {handle.side}", rows)
            logged = sum(buffer.rows for buffer in handle.buffers if "-log-" in buffer.path)
            self.env.coverage.count("records named in a log", logged)
            packed = sum(buffer.rows for buffer in handle.buffers if buffer.inflated)
            self.env.coverage.count("records stored compressed", packed)
            left = sum(b.rows for b in handle.buffers if owner(b.path) in self._attempt().given_up)
            self.env.coverage.count("records named that a given-up checkpoint stored", left)

    def _read_replay(self, effect: ReadReplay) -> None:
        epoch, order, store = (
            self._attempt().epoch,
            effect.order,
            FaultyReads(self.env.faults, self.env.storage),
        )
        passes = passes_of(self.env.plan.edges[order.edge].partitioner)
        delay_ns = self.env.scheduler.delay_ns(
            20 * MICROSECOND_NS, self.env.faults.storage_delay_ns
        )

        def read() -> None:
            if not self.alive:
                return
            try:
                batch = read_buffer(store, self.env.plan.job, order.handle, passes)  # type: ignore[arg-type]  # only `get`
            except CorruptState as error:
                self._step(w.ReplayCorrupt(epoch, str(error)))
            except StoreError as error:
                self._step(w.WorkFailed(epoch, effect.subtask, str(error), "", fatal=False))
            else:
                answer = ReplayBufferRead(order.read, batch)
                self._step(w.ReplayRead(epoch, effect.subtask, answer))

        self.env.scheduler.after(delay_ns, read)

    # --- attempts -----------------------------------------------------------------------------------------------

    def _load(self, effect: w.LoadAttempt) -> None:
        persistence = persistence_of(self.env.settings.limits, self.env.settings.log)
        self._loaded = loaded = _Loaded(effect.epoch, persistence)
        if effect.origin:
            loaded.foreign = Foreign(self.env.storage, effect.job)
        delay_ns = self.env.scheduler.delay_ns(100 * MICROSECOND_NS, 5 * MILLISECOND_NS)
        self.env.scheduler.after(delay_ns, lambda: self._open(loaded, effect))

    def _open(self, loaded: _Loaded, effect: w.LoadAttempt) -> None:
        """All subtasks open at once: their order among each other can be seen by nobody."""
        if not self.alive or loaded.abandoned:
            return
        snapshots = {SubtaskId(s.task, s.index): s for s in effect.restore}
        store = FaultyReads(self.env.faults, self.env.storage)
        try:
            for id in effect.subtasks:
                chain = open_chain(self.env, id, effect.epoch)
                states = states_of(self.env, id, snapshots.get(id), effect.job, store)
                chain.open()
                if states is not None:
                    chain.restore(states)
                loaded.tasks[id] = _Task(chain)
                if id in snapshots:
                    self.env.watch.restored(effect.epoch, snapshots[id], self.env.storage)
        except StoreError as error:
            self._step(w.WorkFailed(effect.epoch, id, str(error), "", fatal=False))
            return
        except CorruptState as error:
            self._step(w.AttemptLoadFailed(effect.epoch, str(error), corrupt=True))
            return
        if effect.checkpoint:
            self.env.coverage.count("restored from a checkpoint")
        self._step(w.AttemptLoaded(effect.epoch))

    def _drop(self, epoch: int) -> None:
        loaded = self._loaded
        if loaded is not None and loaded.epoch == epoch:
            loaded.abandoned = True
            self._log_files.delete(epoch, loaded.persistence.inflight.abandon())
            for task in loaded.tasks.values():
                if not task.busy:
                    task.chain.close()
            self._loaded = None
        for connection in [c for c, (e, _) in self._peers.items() if e <= epoch]:
            self._connections.pop(self._peers.pop(connection), None)
            self.env.network.close(connection, self)

    def gone(self) -> None:
        """See `Process`."""
        self._loaded = None


def _names(effects: Sequence[w.WorkerEffect]) -> str:
    return " ".join(shown(effect) for effect in effects)


def _point_of(effect: w.WorkerEffect) -> str:
    """The crash point that an effect is."""
    match effect:
        case w.Report(message):
            return type(message).__name__
        case RunWork(_, _, PrecommitWork()):
            return "PrecommitWork"
        case _:
            return type(effect).__name__
