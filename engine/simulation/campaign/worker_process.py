"""A simulated worker process: the worker machine, driven in virtual time.

The process plays the part of `drivers/worker_performer.py` and `drivers/worker_driver.py`, with the
product's chains, snapshots and messages. Other threads' work takes virtual time here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.channels.spilled import Spilled
from headrace.channels.wire import Frame
from headrace.inflight.confirmed import NamingLimits
from headrace.inflight.writer import Piece
from headrace.recovery.layout import owner

from ...contract import messages as m
from ...contract.execution import SubtaskId
from ...contract.operators import DatabaseSnapshot
from ...drivers.persistence import CheckpointStored, CheckpointWrite, Frozen, persistence_of
from ...drivers.worker_performer import LoadedAttempt, Performer
from ...operators.chain import Chain
from ...operators.work import PrecommitWork
from ...storage.ahead import FilesAhead
from ...storage.snapshots import Origin, Written
from ...worker import worker_events as w
from ...worker.subtask_events import ReadBuffer, RunWork, TakeSnapshot, UseDisk
from ...worker.worker import Worker
from ...worker.worker_events import DataFrame
from ..scheduler import MICROSECOND_NS
from .checkpoint_files import CaughtFiles, SimulatedCheckpointFiles
from .environment import Environment, Process, shown
from .log_files import SimulatedLogFiles
from .outgoing import Outgoing
from .spill_files import SimulatedSpillFiles
from .storage import Call, FaultyReads, PutCatcher
from .worker_tasks import SimulatedTasks

#: Records are tens of bytes here: some are named, some are written anew, and files become sparse.
NAMING = NamingLimits(named_bytes_min=48, sparse_bytes_min=4096)


class PeerGreeting(NamedTuple):
    """A worker's first message on a data connection."""

    epoch: int
    worker: int


@dataclass(slots=True)
class _Loaded(LoadedAttempt):
    """The operators of an attempt."""

    runs: SimulatedSpillFiles
    tasks: SimulatedTasks
    files: CaughtFiles
    #: Checkpoints that were given up.
    given_up: set[int] = field(default_factory=set)


class WorkerProcess(Process, Performer[_Loaded, int]):
    """One incarnation of a worker.

    Args:
        coordinator: the address to register at.
        address: the worker's own address, for peers.
        ended: called once, at the process's death.
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
        Process.__init__(self, env, f"worker {number}.{incarnation}@{address[0]}", ended)
        limits = env.settings.limits
        machine = Worker(number, env.plan, limits, env.settings.heartbeat_ns)
        Performer.__init__(self, machine, env.plan, limits, self.clock_ns)
        self.number = number
        self._control = -1
        reads: Any = FaultyReads(env.faults, env.storage)  # only `get` is asked for
        #: Until the first attempt; a later attempt follows upon a failure, and looks at everything
        #: again.
        self._ahead: FilesAhead | None = env.disk.files_ahead(reads, env.plan.job)
        #: None: connections have room without limit.
        self._outgoing = (
            None
            if limits.connection is None
            else Outgoing(env, limits.connection, self._put_on_the_way, self._told)
        )
        self._files = SimulatedCheckpointFiles(env, self, self._file_ended, self._file_reached)
        self._log_files = SimulatedLogFiles(env, self, number, self._piece_written)
        env.network.listen(address, self)
        self._control = env.network.connect(coordinator, self, None, None)
        self._report(m.Register(number, incarnation, *address, 0))

    # --- the driver's loop ------------------------------------------------------------------------

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
        if isinstance(event, w.ControlReceived) and isinstance(event.message, m.EndLoop):
            self.env.coverage.count("ends of loops told")
        self._perform_all(effects)

    def _perform_all(self, effects: Iterable[w.WorkerEffect]) -> None:
        for effect in effects:
            point = _point_of(effect)
            if self.reached(point):
                return
            self._perform(effect)
            if self.passed(point):
                return
        self._wake_later()

    # --- the network ------------------------------------------------------------------------------

    def connected(self, connection: int, greeting: Any) -> None:
        """See `Endpoint`."""
        if connection != self._control:
            self._step(self._peers.connected(connection, *greeting))

    def received(self, connection: int, message: Any) -> None:
        """See `Endpoint`."""
        if connection == self._control:
            told = m.decode_for_worker(message)
            if isinstance(told, m.FetchAhead):
                self._fetch_ahead(told)
            else:
                self._step(w.ControlReceived(told))
        elif (frame := self._peers.received(connection, message)) is not None:
            self._step(frame)

    def disconnected(self, connection: int, reason: str) -> None:
        """See `Endpoint`."""
        if connection == self._control:
            self._step(w.ControlLost(reason))
            return
        if self._outgoing is not None:
            self._outgoing.drop(connection)
        if (lost := self._peers.disconnected(connection, reason)) is not None:
            self._step(lost)

    def _report(self, message: m.ToCoordinator | m.FetchedAhead) -> None:
        self.env.network.send(self._control, self, m.encode(message))

    def _send(self, connection: int, frame: DataFrame) -> None:
        if self._outgoing is None:
            self._put_on_the_way(connection, frame)
        else:
            self._outgoing.put(connection, frame)

    def _put_on_the_way(self, connection: int, frame: Frame) -> None:
        self.env.network.send(connection, self, frame)

    def _told(self, connection: int, size_bytes: int, dry: bool) -> None:
        took = self._peers.took(connection, size_bytes, dry=dry)
        if took is not None:
            self._step(took)

    def _connect(self, epoch: int, peer: m.PeerAddress) -> int:
        mine, theirs = PeerGreeting(epoch, self.number), PeerGreeting(epoch, peer.worker)
        return self.env.network.connect((peer.host, peer.port), self, mine, theirs)

    def _close_connection(self, connection: int) -> None:
        if self._outgoing is not None:
            self._outgoing.drop(connection)
        self.env.network.close(connection, self)

    # --- state that is fetched ahead --------------------------------------------------------------

    def _fetch_ahead(self, order: m.FetchAhead) -> None:
        ahead = self._ahead

        def fetch() -> None:
            if self.alive:
                fetched_bytes = 0 if ahead is None else ahead.fetch(order.files)
                self.env.coverage.count("bytes fetched ahead", fetched_bytes)
                self._report(m.FetchedAhead(fetched_bytes))

        self.env.scheduler.after(self._files.delay_ns(), fetch)

    # --- work and attempts ------------------------------------------------------------------------

    def _run(self, effect: RunWork) -> None:
        self._attempt().tasks.run(effect)

    def _chain(self, subtask: SubtaskId) -> Chain:
        return self._attempt().tasks.chain(subtask)

    def _commit(self, subtask: SubtaskId) -> None:
        Performer._commit(self, subtask)
        self._attempt().tasks.committed(subtask)

    def _load(self, effect: w.LoadAttempt) -> None:
        persistence = persistence_of(self.env.settings.limits, self.env.settings.log, NAMING)
        files = persistence.files = CaughtFiles(self.env.plan.job, self.env.coverage)
        # A worker deletes no file that another job claims, so one storage serves all directories.
        origin = Origin(self.env.storage, effect.job, ours=not effect.origin)
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()
        tasks = SimulatedTasks(self.env, self, effect, self._step, self.machine.replays, ahead)
        runs = SimulatedSpillFiles(self.env, self)
        self._loaded = _Loaded(effect.epoch, persistence, origin, runs, runs, tasks, files)
        tasks.start()

    def _leave(self, loaded: _Loaded) -> None:
        loaded.tasks.abandon()

    def _stop(self, effect: w.StopWorker) -> None:
        self.die(host=False, why=f"stopped: {effect.reason}")

    def gone(self) -> None:
        """See `Process`."""
        self._loaded = None

    # --- checkpoints ------------------------------------------------------------------------------

    def _snapshot(self, effect: TakeSnapshot) -> None:
        Performer._snapshot(self, effect)
        loaded, (subtask, checkpoint) = self._attempt(), (effect.subtask, effect.checkpoint)
        self.env.watch.cut(loaded.epoch, checkpoint, subtask)
        for operator in self.env.plan.tasks[subtask.task].operators:
            if operator.sink is not None:
                self.env.sinks.cut(loaded.epoch, checkpoint, operator.name, subtask.subtask)
        queued_bytes = self.machine.queued_bytes
        self.env.coverage.count("bytes in flight at a cut", queued_bytes)

    def _give_up(self, loaded: _Loaded, checkpoint: int) -> None:
        Performer._give_up(self, loaded, checkpoint)
        loaded.given_up.add(checkpoint)

    def _write_piece(self, epoch: int, piece: Piece) -> None:
        self._log_files.write(epoch, piece)

    def _delete_pieces(self, epoch: int, pieces: Iterable[Piece]) -> None:
        self._log_files.delete(epoch, pieces)

    def _write_checkpoint(self, loaded: _Loaded, order: CheckpointWrite) -> None:
        if any(_has_database(states) for states in order.snapshots.values()):
            self._files.write_in_pieces(order, lambda: self._prepared(loaded, order))
        else:
            self._files.write(order, lambda: self._prepared(loaded, order))

    def _prepared(
        self, loaded: _Loaded, order: CheckpointWrite
    ) -> tuple[Sequence[Call], CheckpointStored]:
        """Return the data to write, and the report for afterwards."""
        catcher = PutCatcher()
        into: Any = catcher  # only `put` is asked for
        written = self._written(loaded, order, self.env.storage, into=into)
        runs = [run for cut in order.cuts for run in cut.inflight]
        spilled = [item for run in runs for item in run.buffers if isinstance(item, Spilled)]
        self.env.coverage.count("records on local disk in cuts", sum(s.rows for s in spilled))
        self._count_in_flight(loaded, written)
        return catcher.puts, CheckpointStored(order, written, self._files.delay_ns())

    def _file_ended(self, end: CheckpointStored | w.CheckpointPersistFailed) -> None:
        if isinstance(end, CheckpointStored):
            self._checkpoint_stored(end)
        else:
            self._step(end)

    def _file_reached(self, epoch: int, path: str) -> None:
        if self._loaded is not None and self._loaded.epoch == epoch:
            self._loaded.files.reached(path)

    def _count_in_flight(self, loaded: _Loaded, written: Written) -> None:
        for handle in (h for handles in written.inflight.values() for h in handles):
            rows = sum(buffer.rows for buffer in handle.buffers)
            self.env.coverage.count(f"records persisted in flight, {handle.side}", rows)
            logged = sum(buffer.rows for buffer in handle.buffers if "-log-" in buffer.path)
            self.env.coverage.count("records named in a log", logged)
            packed = sum(buffer.rows for buffer in handle.buffers if buffer.inflated)
            self.env.coverage.count("records stored compressed", packed)
            left = sum(b.rows for b in handle.buffers if owner(b.path) in loaded.given_up)
            self.env.coverage.count("records named that a given-up checkpoint stored", left)

    def _read_buffer(self, effect: ReadBuffer) -> None:
        loaded = self._attempt()
        assert loaded.origin is not None, "a simulated worker has storage"
        store: Any = FaultyReads(self.env.faults, self.env.storage)  # only `get` is asked for
        origin = replace(loaded.origin, store=store)
        high_ns = self.env.faults.storage_delay_ns
        delay_ns = self.env.scheduler.delay_ns(20 * MICROSECOND_NS, high_ns)

        def read() -> None:
            if self.alive:
                self._step(self._read(loaded.epoch, effect, origin))

        self.env.scheduler.after(delay_ns, read)

    def _use_disk(self, effect: UseDisk) -> None:
        loaded = self._attempt()

        def use() -> None:
            event = self._used(loaded, effect)
            if event is not None:
                self._step(event)

        loaded.runs.use(effect.order, use)


def _has_database(states: Frozen) -> bool:
    return any(isinstance(state, DatabaseSnapshot) for _, state in states)


def _names(effects: Sequence[w.WorkerEffect]) -> str:
    return " ".join(shown(effect) for effect in effects)


def _point_of(effect: w.WorkerEffect) -> str:
    """Return the crash point of an effect."""
    match effect:
        case w.Report(message):
            return type(message).__name__
        case RunWork(_, _, PrecommitWork()):
            return "PrecommitWork"
        case _:
            return type(effect).__name__
