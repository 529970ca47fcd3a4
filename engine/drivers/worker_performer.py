"""The performer of a worker's effects, in every driver.

`worker_driver.py` has threads, sockets and a clock, the simulation has virtual time; calls that
take time are theirs. Common to both, and here, are the way of each effect, the connection to each
worker, and the order of calls to the persistence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, assert_never

from headrace.inflight.spill import (
    DeleteRun,
    ReadRun,
    RunRead,
    RunUnwritten,
    RunWritten,
    WriteRun,
)
from headrace.inflight.writer import Piece
from headrace.recovery.store import Store, StoreError

from ..contract import messages as m
from ..contract.errors import HeadraceError
from ..contract.execution import ExecutionPlan, SubtaskId
from ..operators.chain import Chain
from ..operators.work import CompletedWork
from ..storage.log_files import PieceWritten
from ..storage.snapshots import (
    CorruptState,
    Origin,
    Written,
    destination_of,
    passes_of,
    read_buffer,
    write_checkpoint,
)
from ..storage.spill_files import CorruptRun, SpillFiles
from ..worker import worker_events as w
from ..worker.subtask_events import (
    BufferRead,
    CommitWork,
    DiskUsed,
    LogBuffer,
    ReadBuffer,
    RunWork,
    TakeSnapshot,
    UseDisk,
)
from ..worker.subtask_spec import Limits
from ..worker.worker import Worker
from ..worker.worker_events import (
    DataFrame,
    PersistCheckpoint,
    SendFrame,
)
from .persistence import CheckpointStored, CheckpointWrite, Persistence


@dataclass(slots=True)
class LoadedAttempt:
    """The attempt that the operators belong to, as every driver keeps it."""

    epoch: int
    persistence: Persistence
    #: None: there is no checkpoint storage.
    origin: Origin | None
    spill_files: SpillFiles


_Connection = TypeVar("_Connection")
_Attempt = TypeVar("_Attempt", bound=LoadedAttempt)


class Peers(Generic[_Connection]):
    """Data connections to other workers, by epoch."""

    def __init__(self) -> None:
        #: {connection: (epoch, worker)}, those that are being made included.
        self._who: dict[_Connection, tuple[int, int]] = {}
        #: Its inverse, of those that are open.
        self._open: dict[tuple[int, int], _Connection] = {}

    def dialled(self, connection: _Connection, epoch: int, worker: int) -> None:
        """A connection is being made."""
        self._who[connection] = (epoch, worker)

    def connected(self, connection: _Connection, epoch: int, worker: int) -> w.PeerConnected:
        """A connection is open."""
        self._who[connection] = (epoch, worker)
        self._open[epoch, worker] = connection
        return w.PeerConnected(epoch, worker)

    def received(self, connection: _Connection, *frames: DataFrame) -> w.FramesReceived | None:
        """Frames came in; None: over an unwanted connection."""
        peer = self._who.get(connection)
        return None if peer is None else w.FramesReceived(*peer, frames)

    def took(self, connection: _Connection, size_bytes: int, *, dry: bool) -> w.PeerTook | None:
        """A socket took data; None: of an unwanted connection."""
        peer = self._who.get(connection)
        return None if peer is None else w.PeerTook(*peer, size_bytes, dry)

    def disconnected(self, connection: _Connection, reason: str) -> w.PeerLost | None:
        """A connection has ended; None: an unwanted one."""
        peer = self._who.pop(connection, None)
        if peer is None:
            return None
        self._open.pop(peer, None)
        return w.PeerLost(*peer, reason)

    def to(self, epoch: int, worker: int) -> _Connection | None:
        """Return the connection to a worker. None: lost, as the machine will hear."""
        return self._open.get((epoch, worker))

    def leave(self, epoch: int) -> list[_Connection]:
        """Forget connections of this epoch and of older ones; return them to be closed."""
        over = [connection for connection, (e, _) in self._who.items() if e <= epoch]
        for connection in over:
            self._open.pop(self._who.pop(connection), None)
        return over


class Performer(ABC, Generic[_Attempt, _Connection]):
    """Performs a worker's effects. Subclasses have threads, sockets, storage and time."""

    def __init__(
        self, machine: Worker, plan: ExecutionPlan, limits: Limits, clock: Callable[[], int]
    ) -> None:
        self.machine = machine
        self._clock_ns = clock
        self._plan = plan
        self._limits = limits
        self._peers: Peers[_Connection] = Peers()
        self._loaded: _Attempt | None = None

    def _perform(self, effect: w.WorkerEffect) -> None:
        match effect:
            case RunWork(subtask, number, CompletedWork(checkpoint)):
                states = self._attempt().persistence.heard(checkpoint, subtask)
                self._run(RunWork(subtask, number, CompletedWork(checkpoint, states)))
            case RunWork():
                self._run(effect)
            case CommitWork(subtask):
                self._commit(subtask)
            case LogBuffer(channel, buffer):
                self._attempt().persistence.inflight.log(channel, buffer)
                self._write_ready()
            case SendFrame(epoch, worker, frame):
                connection = self._peers.to(epoch, worker)
                if connection is not None:
                    self._send(connection, frame)
            case TakeSnapshot():
                self._snapshot(effect)
            case ReadBuffer():
                self._read_buffer(effect)
            case UseDisk():
                self._use_disk(effect)
            case w.ConfirmCheckpoint():
                self._attempt().persistence.confirmed(effect.checkpoint)
            case PersistCheckpoint():
                self._attempt().persistence.persist(effect)
                self._write_ready()
            case w.GiveUpCheckpoint():
                if self._loaded is not None:
                    self._give_up(self._loaded, effect.checkpoint)
            case w.Report(message):
                self._report(message)
            case w.LoadAttempt():
                self._load(effect)
            case w.DropAttempt():
                self._drop(effect.epoch)
            case w.ConnectPeers():
                for peer in effect.connect:
                    self._peers.dialled(
                        self._connect(effect.epoch, peer), effect.epoch, peer.worker
                    )
            case w.StopWorker():
                self._stop(effect)
            case _:
                assert_never(effect)

    def _commit(self, subtask: SubtaskId) -> None:
        self._chain(subtask).commit()

    def _snapshot(self, effect: TakeSnapshot) -> None:
        began_ns = self._clock_ns()
        chain = self._chain(effect.subtask)
        states = chain.snapshot()
        sync_ns = self._clock_ns() - began_ns
        self._attempt().persistence.freeze(
            effect.checkpoint, effect.subtask, states, sync_ns, chain.hears
        )

    def _attempt(self) -> _Attempt:
        assert self._loaded is not None, "no attempt is loaded"
        return self._loaded

    def _drop(self, epoch: int) -> None:
        if self._loaded is not None and self._loaded.epoch == epoch:
            self._delete_pieces(epoch, self._loaded.persistence.inflight.abandon())
            self._leave(self._loaded)
            self._loaded = None
        for connection in self._peers.leave(epoch):
            self._close_connection(connection)

    # --- checkpoints ------------------------------------------------------------------------------

    def _give_up(self, loaded: _Attempt, checkpoint: int) -> None:
        loaded.persistence.given_up(checkpoint)

    def _write_ready(self) -> None:
        """Begin all writes that are ready."""
        loaded = self._attempt()
        for order in loaded.persistence.ready(self.machine.floors):
            match order:
                case CheckpointWrite():
                    self._write_checkpoint(loaded, order)
                case Piece():
                    self._write_piece(loaded.epoch, order)
                case _:
                    assert_never(order)

    def _piece_written(self, event: PieceWritten) -> None:
        loaded = self._loaded
        if loaded is None or loaded.epoch != event.epoch:
            self._delete_pieces(event.epoch, [event.piece])
            return
        loaded.persistence.inflight.piece_written(event.piece, event.handles)
        self._write_ready()
        over = loaded.persistence.trimmed(self.machine.floors())
        self._delete_pieces(loaded.epoch, over)

    def _checkpoint_stored(self, done: CheckpointStored) -> None:
        if self._loaded is not None and self._loaded.epoch == done.write.epoch:
            self._loaded.persistence.stored(done)
        self._step(done.event())

    def _written(
        self, loaded: _Attempt, order: CheckpointWrite, own: Store | None, into: Store | None = None
    ) -> Written:
        """Write this worker's part of a checkpoint; may take long.

        Raises StoreError, OSError, UserError, StorageUnreachable.

        Args:
            own: the job's checkpoint directory.
            into: takes the writes in place of the directory they are for.
        """
        job = self._plan.job
        store, copied, kind = destination_of(
            order.savepoint, own, job, loaded.origin, full=order.full
        )
        return write_checkpoint(
            into or store,
            job,
            order.checkpoint,
            self.machine.me,
            order.epoch,
            order.snapshots,
            order.cuts,
            order.index,
            copied,
            kind,
            loaded.persistence.files,
            compresses=self._limits.compresses,
            full=order.full,
            runs=loaded.spill_files.content,
        )

    def _read(self, epoch: int, effect: ReadBuffer, origin: Origin) -> w.WorkerEvent:
        """Read a stored buffer for the replay; may take long."""
        order = effect.order
        passes = passes_of(self._plan.edges[order.edge].partitioner)
        try:
            batch = read_buffer(origin.store, origin.job, order.handle, passes)
        except CorruptState as error:
            return w.ReadCorrupt(epoch, str(error))
        except StoreError as error:
            reason = f"in-flight data could not be read: {error}"
            return w.WorkFailed(epoch, effect.subtask, reason, "", fatal=False)
        return w.ReadEnded(epoch, effect.subtask, BufferRead(order.number, batch))

    def _used(self, loaded: LoadedAttempt, effect: UseDisk) -> w.WorkerEvent | None:
        """Carry out an order to the local disk; takes time. None: nothing is to be told."""
        subtask, files, order = effect.subtask, loaded.spill_files, effect.order
        outcome: RunWritten | RunUnwritten | RunRead
        match order:
            case WriteRun(number):
                try:
                    outcome = RunWritten(files.write(subtask, order))
                except (OSError, HeadraceError) as error:
                    outcome = RunUnwritten(number, str(error))
            case ReadRun(file):
                try:
                    outcome = RunRead(file.number, files.read(subtask, file))
                except CorruptRun as error:
                    reason = f"spilled records could not be read back: {error}"
                    return w.WorkFailed(loaded.epoch, subtask, reason, "", fatal=False)
            case DeleteRun(file):
                files.delete(subtask, file)
                return None
            case _:
                assert_never(order)
        return w.SpillEnded(loaded.epoch, subtask, DiskUsed(outcome))

    # --- what the driver does ---------------------------------------------------------------------

    @abstractmethod
    def _step(self, event: w.WorkerEvent) -> None:
        """Give the machine an event and perform the effects."""

    @abstractmethod
    def _run(self, effect: RunWork) -> None:
        """Run user code; ends in WorkEnded or WorkFailed."""

    @abstractmethod
    def _chain(self, subtask: SubtaskId) -> Chain:
        """The open chain of a subtask."""

    @abstractmethod
    def _read_buffer(self, effect: ReadBuffer) -> None:
        """Begin to read; ends in the event of `_read`."""

    @abstractmethod
    def _use_disk(self, effect: UseDisk) -> None:
        """Begin to use the local disk, behind earlier orders; ends in the event of `_used`."""

    @abstractmethod
    def _write_checkpoint(self, loaded: _Attempt, order: CheckpointWrite) -> None:
        """Begin to write; ends in CheckpointStored or CheckpointPersistFailed."""

    @abstractmethod
    def _write_piece(self, epoch: int, piece: Piece) -> None:
        """Begin to write a piece of the in-flight log; ends in PieceWritten."""

    @abstractmethod
    def _delete_pieces(self, epoch: int, pieces: Iterable[Piece]) -> None:
        """Delete pieces of the in-flight log, sooner or later."""

    @abstractmethod
    def _report(self, message: m.ToCoordinator) -> None:
        """Tell the coordinator."""

    @abstractmethod
    def _connect(self, epoch: int, peer: m.PeerAddress) -> _Connection:
        """Begin to connect to a worker."""

    @abstractmethod
    def _send(self, connection: _Connection, frame: DataFrame) -> None:
        """Hand a frame to the transport."""

    @abstractmethod
    def _close_connection(self, connection: _Connection) -> None:
        """Close an unwanted connection."""

    @abstractmethod
    def _load(self, effect: w.LoadAttempt) -> None:
        """Set `_loaded`, and open the operators; ends in AttemptLoaded or AttemptLoadFailed."""

    @abstractmethod
    def _leave(self, loaded: _Attempt) -> None:
        """The attempt's operators are not wanted any more."""

    @abstractmethod
    def _stop(self, effect: w.StopWorker) -> None:
        """End this worker."""
