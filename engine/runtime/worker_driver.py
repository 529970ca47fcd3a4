"""The worker's driver: one owner thread that steps the worker machine and performs its effects.

Readers (the network's thread, the subtasks' threads, the storage threads) only put events into the inbox. The owner thread takes them out, steps the
machine and performs what comes back, in order; what takes long is handed to another thread. So the machines need no lock,
and a barrier never waits for user code or storage.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import assert_never

from headrace.channels.handshake import Identity
from headrace.channels.wire import ControlFrame
from headrace.inflight.writer import Piece
from headrace.recovery.store import Store, StoreError

from ..api.errors import HeadraceError
from ..coordination import messages as m
from ..operators.base import HEAP, StateBackend
from ..plan.execution import ExecutionPlan
from . import worker_protocol as w
from .attempt import PersistCheckpoint, SendFrame
from .clock import now_ns
from .loading import chain_maker, state_reader
from .log_files import LogFiles, PieceWritten
from .network import (
    Connected,
    ConnectionId,
    Disconnected,
    Network,
    NetworkEvent,
    Received,
)
from .persistence import CheckpointWrite, Frozen, Persistence, persistence_of
from .snapshots import (
    CorruptState,
    Foreign,
    destination_of,
    passes_of,
    read_buffer,
    write_checkpoint,
)
from .storage import open_store
from .subtask_spec import Limits
from .subtask_thread import (
    Leaving,
    SubtaskOpened,
    SubtaskOpenFailed,
    SubtaskThread,
    ThreadEvent,
)
from .work import (
    CommitWork,
    LogBuffer,
    ReadReplay,
    ReplayBufferRead,
    RunWork,
    SubtaskId,
    TakeSnapshot,
)
from .worker import Worker
from .working_folder import WorkingFolder

_log = logging.getLogger(__name__)

_TURN_ITEMS_MAX = 64
#: How long the end of a worker may wait for storage to delete what nobody will name.
_SETTLE_S = 5.0
#: How long it may wait for the threads of its subtasks: a database that is open when the interpreter ends aborts the process.
_LEAVE_S = 1.0

InboxItem = w.WorkerEvent | ThreadEvent | PieceWritten | list[NetworkEvent]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told besides the plan. Times in nanoseconds."""

    limits: Limits
    heartbeat_ns: int
    storage_threads: int = 2
    backend: StateBackend = HEAP
    #: Where databases lie; None: where the system keeps temporary files.
    state_directory: str | None = None


@dataclass(slots=True)
class _Loaded:
    """The threads of one attempt, and which of them have still to open."""

    epoch: int
    threads: dict[SubtaskId, SubtaskThread]
    opening: set[SubtaskId]
    persistence: Persistence
    #: Where the attempt was restored from, if that is not the job's own directory.
    foreign: Foreign | None = None


class WorkerDriver:
    """Runs one worker until the coordinator ends it or is gone.

    Args:
        identity: this worker's; its epoch is 0, the control connection's.
        store: where checkpoints go; None: nowhere (no checkpoints are configured).
        dial: the coordinator's address.
        host: where to listen for peers.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        identity: Identity,
        secret: bytes,
        settings: WorkerSettings,
        store: Store | None,
        *,
        dial: tuple[str, int],
        host: str,
        pid: int,
    ) -> None:
        self._plan = plan
        self._identity = identity
        self._settings = settings
        self._store = store
        self._dial = dial
        self._host = host
        self._pid = pid
        self._inbox: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()
        self._leaving = Leaving()
        self._machine = Worker(identity.worker, plan, settings.limits, settings.heartbeat_ns)
        self._network = Network(
            secret,
            identity,
            deliver=self._inbox.put,
            schemas=lambda edge: plan.edges[edge].schema,
            accept=self._accepts,
        )
        self._working = WorkingFolder(settings.state_directory)
        self._storage = ThreadPoolExecutor(settings.storage_threads, thread_name_prefix="storage")
        self._log_files = LogFiles(
            store,
            plan.job,
            identity.worker,
            self._storage,
            self._inbox.put,
            compresses=settings.limits.compresses,
        )
        self._control = ConnectionId(-1)
        #: {connection: (epoch, worker)} of data connections, and its inverse.
        self._peers: dict[ConnectionId, tuple[int, int]] = {}
        self._connections: dict[tuple[int, int], ConnectionId] = {}
        self._loaded: _Loaded | None = None
        self._ended: w.StopWorker | None = None

    def run(self) -> w.StopWorker:
        """Serve until the end; returns why it ended."""
        self._network.start()
        try:
            address = self._network.listen(self._host)
            self._control = self._network.connect(self._dial, 0)
            self._register_when_connected(*address)
            while self._ended is None:
                self._turn()
            return self._ended
        finally:
            self._close()

    def _register_when_connected(self, host: str, port: int) -> None:
        me = self._identity
        register = m.Register(me.worker, me.incarnation, host, port, self._pid)
        self._network.send(self._control, ControlFrame(m.encode(register)))

    def _accepts(self, peer: Identity) -> bool:
        """The coordinator, whom we call, and any other worker of the job; the machine fences by epoch."""
        return peer.role == "coordinator" or peer.worker != self._identity.worker

    # --- the owner loop -----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        deadline_ns = self._machine.next_deadline_ns()
        wait_s = None if deadline_ns is None else max(0.0, (deadline_ns - now_ns()) / 1e9)
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=wait_s))
            # All that is there, before deadlines are looked at again; but not for so long that one would be missed by much.
            for _ in range(_TURN_ITEMS_MAX):
                self._take(self._inbox.get_nowait())
        if deadline_ns is not None and deadline_ns <= now_ns():
            self._step(w.TimePassed())

    def _take(self, item: InboxItem) -> None:
        match item:
            case list():
                for event in item:
                    self._network_event(event)
            case SubtaskOpened():
                self._opened(item)
            case SubtaskOpenFailed():
                self._open_failed(item)
            case PieceWritten():
                self._piece_written(item)
            case w.CheckpointPersisted():
                if self._loaded is not None and self._loaded.epoch == item.epoch:
                    self._loaded.persistence.stored(item.checkpoint, item.inflight)
                self._step(item)
            case _:
                self._step(item)

    def _step(self, event: w.WorkerEvent) -> None:
        for effect in self._machine.step(event, now_ns()):
            self._perform(effect)

    def _network_event(self, event: NetworkEvent) -> None:
        match event:
            case Received(connection, frame):
                if isinstance(frame, ControlFrame):
                    if connection == self._control:
                        self._step(w.ControlReceived(m.decode_for_worker(frame.body)))
                elif connection in self._peers:
                    self._step(w.FrameReceived(*self._peers[connection], frame))
            case Connected(connection, peer):
                if connection != self._control:
                    self._connected(connection, peer.epoch, peer.worker)
            case Disconnected(connection, reason):
                if connection == self._control:
                    self._step(w.ControlLost(reason))
                else:
                    self._disconnected(connection, reason)
            case _:
                assert_never(event)

    def _connected(self, connection: ConnectionId, epoch: int, worker: int) -> None:
        self._peers[connection] = (epoch, worker)
        self._connections[epoch, worker] = connection
        self._step(w.PeerConnected(epoch, worker))

    def _disconnected(self, connection: ConnectionId, reason: str) -> None:
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._connections.pop(peer, None)
            self._step(w.PeerLost(*peer, reason))

    # --- effects ------------------------------------------------------------------------------------------------

    def _perform(self, effect: w.WorkerEffect) -> None:
        match effect:
            case RunWork(subtask, number, work):
                self._threads()[subtask].submit(number, work)
            case CommitWork(subtask):
                self._threads()[subtask].chain.commit()
            case LogBuffer(channel, buffer):
                self._attempt().persistence.inflight.log(channel, buffer)
                self._write_ready()
            case SendFrame():
                connection = self._connections.get((effect.epoch, effect.worker))
                if connection is not None:  # else it was lost, and PeerLost is in the inbox
                    self._network.send(connection, effect.frame)
            case TakeSnapshot():
                self._snapshot(effect)
            case ReadReplay():
                self._read_replay(effect)
            case w.ConfirmCheckpoint():
                self._attempt().persistence.confirmed(effect.checkpoint)
            case PersistCheckpoint():
                self._attempt().persistence.persist(effect)
                self._write_ready()
            case w.DiscardSnapshots():
                if self._loaded is not None:
                    self._loaded.persistence.discard(effect.checkpoint)
            case w.Report(message):
                self._network.send(self._control, ControlFrame(m.encode(message)))
            case w.LoadAttempt():
                self._load(effect)
            case w.DropAttempt():
                self._drop(effect.epoch)
            case w.ConnectPeers():
                self._connect(effect)
            case w.StopWorker():
                self._ended = effect
            case _:
                assert_never(effect)

    def _attempt(self) -> _Loaded:
        assert self._loaded is not None, "no attempt is loaded"
        return self._loaded

    def _threads(self) -> dict[SubtaskId, SubtaskThread]:
        return self._attempt().threads

    def _snapshot(self, effect: TakeSnapshot) -> None:
        loaded = self._attempt()
        began_ns = now_ns()
        chain = loaded.threads[effect.subtask].chain
        states: Frozen = [*chain.snapshot(), *chain.databases()]
        loaded.persistence.freeze(effect.checkpoint, effect.subtask, states, now_ns() - began_ns)

    def _write_ready(self) -> None:
        loaded = self._attempt()
        for order in loaded.persistence.ready():
            match order:
                case CheckpointWrite():
                    self._write_checkpoint(loaded, order)
                case Piece():
                    self._log_files.write(loaded.epoch, order)
                case _:
                    assert_never(order)

    def _piece_written(self, event: PieceWritten) -> None:
        loaded = self._loaded
        if loaded is None or loaded.epoch != event.epoch:
            self._log_files.delete(event.epoch, [event.piece])
            return
        loaded.persistence.inflight.piece_written(event.piece, event.handles)
        self._write_ready()
        over = loaded.persistence.trimmed(self._machine.floors())
        self._log_files.delete(loaded.epoch, over)

    def _write_checkpoint(self, loaded: _Loaded, order: CheckpointWrite) -> None:
        epoch, checkpoint = order.epoch, order.checkpoint
        began_ns = now_ns()

        def write() -> None:
            try:
                own = (self._store, self._plan.job, loaded.foreign)
                store, foreign, kind = destination_of(order.savepoint, *own)
                written = write_checkpoint(
                    store,
                    self._plan.job,
                    checkpoint,
                    self._identity.worker,
                    epoch,
                    order.snapshots,
                    order.cuts,
                    order.index,
                    foreign,
                    kind,
                    loaded.persistence.files,
                    compresses=self._settings.limits.compresses,
                )
            except Exception as error:
                # Whatever it is, the checkpoint fails and the job goes on.
                told = isinstance(error, StoreError | HeadraceError)
                reason = str(error) if told else repr(error)
                self._inbox.put(w.CheckpointPersistFailed(epoch, checkpoint, reason))
                return
            self._inbox.put(
                w.CheckpointPersisted(
                    epoch,
                    checkpoint,
                    written.states,
                    written.inflight,
                    order.sync_ns,
                    now_ns() - began_ns,
                    written.databases,
                )
            )

        self._storage.submit(write)

    def _read_replay(self, effect: ReadReplay) -> None:
        loaded = self._attempt()
        epoch, order = loaded.epoch, effect.order
        passes = passes_of(self._plan.edges[order.edge].partitioner)

        def read() -> None:
            store, job = self._store, self._plan.job
            if loaded.foreign is not None:
                store, job = loaded.foreign.store, loaded.foreign.job
            try:
                if store is None:
                    raise CorruptState("there is no checkpoint storage to restore from")
                batch = read_buffer(store, job, order.handle, passes)
                answer = ReplayBufferRead(order.read, batch)
                self._inbox.put(w.ReplayRead(epoch, effect.subtask, answer))
            except CorruptState as error:
                self._inbox.put(w.ReplayCorrupt(epoch, str(error)))
            except Exception as error:
                reason = f"in-flight data could not be read: {error}"
                self._inbox.put(w.WorkFailed(epoch, effect.subtask, reason, "", fatal=False))

        self._storage.submit(read)

    def _connect(self, effect: w.ConnectPeers) -> None:
        for peer in effect.connect:
            connection = self._network.connect((peer.host, peer.port), effect.epoch)
            self._peers[connection] = (effect.epoch, peer.worker)

    # --- attempts -----------------------------------------------------------------------------------------------

    def _load(self, effect: w.LoadAttempt) -> None:
        snapshots = {SubtaskId(s.task, s.index): s for s in effect.restore}
        limits = self._settings.limits
        backend = replace(self._settings.backend, folder=self._working.new)
        threads = {
            id: SubtaskThread(
                effect.epoch,
                id,
                chain_maker(self._plan, id, effect.epoch, limits.buffer_bytes, backend),
                state_reader(self._plan, id, snapshots.get(id), effect, self._store),
                self._inbox.put,
            )
            for id in effect.subtasks
        }
        self._loaded = _Loaded(
            effect.epoch, threads, set(threads), persistence_of(self._settings.limits)
        )
        if effect.origin:
            self._loaded.foreign = Foreign(open_store(effect.origin), effect.job)
        for thread in threads.values():
            thread.start()

    def _opened(self, event: SubtaskOpened) -> None:
        if self._loaded is None or self._loaded.epoch != event.epoch:
            return
        self._loaded.opening.discard(event.subtask)
        if not self._loaded.opening:
            self._step(w.AttemptLoaded(event.epoch))

    def _open_failed(self, event: SubtaskOpenFailed) -> None:
        if isinstance(event.error, StoreError):
            # Storage that does not answer now says nothing about the program or the checkpoint: try again.
            reason = f"the checkpoint could not be read: {event.error}"
            self._step(w.WorkFailed(event.epoch, event.subtask, reason, "", fatal=False))
            return
        corrupt = isinstance(event.error, CorruptState)
        known = isinstance(event.error, HeadraceError | CorruptState)
        reason = str(event.error) if known else repr(event.error)
        self._step(w.AttemptLoadFailed(event.epoch, reason, corrupt))

    def _drop(self, epoch: int) -> None:
        if self._loaded is not None and self._loaded.epoch == epoch:
            self._leaving.add(self._loaded.threads.values())
            self._log_files.delete(epoch, self._loaded.persistence.inflight.abandon())
            self._loaded = None
        for connection in [c for c, (e, _) in self._peers.items() if e <= epoch]:
            self._connections.pop(self._peers.pop(connection), None)
            self._network.close(connection)

    def _close(self) -> None:
        if self._loaded is not None:
            self._drop(self._loaded.epoch)
        self._network.stop()
        self._clean_up()
        self._storage.shutdown(wait=False, cancel_futures=True)
        self._leaving.settle(_LEAVE_S)
        self._working.close()

    def _clean_up(self) -> None:
        """Pieces of the log that are of no checkpoint go with the worker, that under way included."""
        self._log_files.settle(_SETTLE_S)
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, PieceWritten):
                    self._log_files.delete(item.epoch, [item.piece])
        self._log_files.settle(_SETTLE_S)
