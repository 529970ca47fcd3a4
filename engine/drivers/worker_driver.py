"""The worker's driver: one owner thread steps the worker machine and performs the effects.

Readers (the network's thread, the subtasks' threads, the storage threads) only put events into the
inbox. The owner thread takes events out, steps the machine and performs the effects in order; calls
that take long go to another thread. So the machines need no lock, and a barrier never waits for
user code or storage.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import assert_never

from msgspec import structs

from headrace.channels.handshake import Identity
from headrace.channels.wire import FRAME_BYTES_MAX, BufferFrame, ControlFrame, too_long
from headrace.inflight.writer import Piece
from headrace.recovery.store import Store, StoreError

from ..contract import messages as m
from ..contract.clock import now_ns
from ..contract.errors import HeadraceError, UserCodeError
from ..contract.execution import EdgePlan, ExecutionPlan, SubtaskId
from ..contract.operators import HEAP, ChildProcess, StateBackend
from ..network.network import (
    Connected,
    ConnectionId,
    Disconnected,
    Network,
    NetworkEvent,
    Received,
    Took,
)
from ..operators.chain import Chain
from ..storage.ahead import FilesAhead
from ..storage.log_files import LogFiles, PieceWritten
from ..storage.spill_files import CorruptRun, SpillFiles
from ..storage.working_folder import WorkingFolder
from ..worker import worker_events as w
from ..worker.subtask_events import CommitWork, ReadBuffer, RunWork, TakeSnapshot, UseDisk
from ..worker.subtask_spec import Limits
from ..worker.worker import Worker
from ..worker.worker_events import DataFrame, SendFrame
from .call_board import CallBoard
from .call_times import CallTimes
from .failed_batches import FailedBatches
from .failed_calls import open_failed, work_failed
from .gil_probe import GilProbe
from .isolated_process import SpawnedProcess
from .loading import check_directory, make_chain, open_database, origin_of, read_restored
from .persistence import CheckpointStored, CheckpointWrite, persistence_of
from .subtask_thread import (
    Leaving,
    SubtaskOpened,
    SubtaskOpenFailed,
    SubtaskThread,
    ThreadEvent,
)
from .worker_performer import LoadedAttempt, Performer

_log = logging.getLogger(__name__)

_TURN_ITEMS_MAX = 64
MIB = 1 << 20
#: How long the end of a worker may wait for storage to delete what nobody will name.
_DELETE_S = 5.0
#: Limit of the wait for the threads of its subtasks: a database that is open when the interpreter
#: ends aborts the process.
_LEAVE_S = 1.0

InboxItem = w.WorkerEvent | ThreadEvent | PieceWritten | CheckpointStored | list[NetworkEvent]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker besides the plan. Times in nanoseconds."""

    limits: Limits
    heartbeat_ns: int
    storage_threads: int = 2
    backend: StateBackend = HEAP
    #: Where databases lie; None: where the system keeps temporary files.
    state_directory: str | None = None
    #: See `OperatorContext`.
    owner: str = ""
    #: URL of the checkpoint directory; empty: there is none.
    directory: str = ""


@dataclass(slots=True)
class _Loaded(LoadedAttempt):
    """The threads of one attempt, and the subtasks that have still to open."""

    threads: dict[SubtaskId, SubtaskThread]
    opening: set[SubtaskId]
    #: Files that were fetched before it, until all have opened.
    ahead: FilesAhead | None


class WorkerDriver(Performer[_Loaded, ConnectionId]):
    """Runs one worker until the coordinator ends it or is gone.

    Args:
        identity: this worker's; its epoch is 0, the control connection's.
        store: where checkpoints go; None: nowhere (no checkpoints are configured).
        dial: the coordinator's address.
        host: where to listen for peers.
        calls: takes the calls of operators.
        processes: starts a process for an isolated operator.
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
        calls: CallBoard | None = None,
        processes: Callable[[], ChildProcess] = SpawnedProcess,
    ) -> None:
        machine = Worker(identity.worker, plan, settings.limits, settings.heartbeat_ns)
        super().__init__(machine, plan, settings.limits, now_ns)
        self._identity = identity
        self._settings = settings
        self._store = store
        self._dial = dial
        self._host = host
        self._pid = pid
        self._calls = CallBoard() if calls is None else calls
        self._probe = GilProbe(self._calls)
        self._processes = processes
        self._inbox: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()
        self._leaving = Leaving()
        self._network = Network(
            secret,
            identity,
            deliver=self._inbox.put,
            schemas=lambda edge: plan.edges[edge].schema,
            accept=self._accepts,
        )
        self._working = WorkingFolder(settings.state_directory)
        self._storage = ThreadPoolExecutor(settings.storage_threads, thread_name_prefix="storage")
        # One thread: orders to the disk keep their order, and no upload goes before them.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="spill")
        self._uses_disk = False
        self._failed = FailedBatches(store, settings.directory, plan.job, self._storage)
        self._log_files = LogFiles(
            store,
            plan.job,
            identity.worker,
            self._storage,
            self._inbox.put,
            compresses=settings.limits.compresses,
        )
        self._ahead = None if store is None else FilesAhead(store, plan.job, self._working.new)
        self._control = ConnectionId(-1)
        self._ended: w.StopWorker | None = None

    def run(self) -> w.StopWorker:
        """Serve until the end; returns why it ended."""
        self._network.start()
        self._probe.start()
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
        self._report(m.Register(me.worker, me.incarnation, host, port, self._pid))

    def _accepts(self, peer: Identity) -> bool:
        """Accept the coordinator and any other worker of the job; the machine fences by epoch."""
        return peer.role == "coordinator" or peer.worker != self._identity.worker

    # --- the owner loop ---------------------------------------------------------------------------

    def _turn(self) -> None:
        deadline_ns = self.machine.next_deadline_ns()
        wait_s = None if deadline_ns is None else max(0.0, (deadline_ns - now_ns()) / 1e9)
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=wait_s))
            # Take everything there before the next look at deadlines; but not for so long that a
            # deadline would be missed by much.
            for _ in range(_TURN_ITEMS_MAX):
                self._take(self._inbox.get_nowait())
        if deadline_ns is not None and deadline_ns <= now_ns():
            self._step(w.TimePassed())

    def _take(self, item: InboxItem) -> None:
        match item:
            case list():
                for connection, events in groupby(item, _brings_data):
                    if connection is None:
                        for event in events:
                            self._network_event(event)
                    else:
                        self._data_received(connection, events)
            case SubtaskOpened():
                self._opened(item)
            case SubtaskOpenFailed():
                self._step(open_failed(item.epoch, item.subtask, item.error))
            case PieceWritten():
                self._piece_written(item)
            case CheckpointStored():
                self._checkpoint_stored(item)
            case _:
                self._step(item)

    def _step(self, event: w.WorkerEvent) -> None:
        for effect in self.machine.step(event, now_ns()):
            try:
                self._perform(effect)
            except UserCodeError as error:
                # The effects behind it are of the attempt that fails by it.
                self._effect_failed(effect, error)
                return

    def _effect_failed(self, effect: w.WorkerEffect, error: UserCodeError) -> None:
        """An operator's `commit` or `snapshot` raised, or emitted a record that cannot travel."""
        match effect:
            case CommitWork(subtask) | TakeSnapshot(subtask, _):
                self._step(work_failed(self._attempt().epoch, subtask, error))
            case SendFrame(epoch, _, frame):
                producer = SubtaskId(self._edge(frame).producer, frame.channel.producer)
                self._step(work_failed(epoch, producer, error))
            case _:
                raise error

    def _data_received(self, connection: ConnectionId, events: Iterable[NetworkEvent]) -> None:
        """Give the machine all at once: it takes records of many frames for one piece of work."""
        frames = [event.frame for event in events if isinstance(event, Received)]
        data = [frame for frame in frames if not isinstance(frame, ControlFrame)]
        answer = self._peers.received(connection, *data)
        if answer is not None:
            self._step(answer)

    def _network_event(self, event: NetworkEvent) -> None:
        answer: w.WorkerEvent | None = None
        match event:
            case Received(connection, frame):
                if isinstance(frame, ControlFrame) and connection == self._control:
                    answer = self._told(m.decode_for_worker(frame.body))
            case Took(connection, size_bytes, dry):
                answer = self._peers.took(connection, size_bytes, dry=dry)
            case Connected(connection, peer):
                if connection != self._control:
                    answer = self._peers.connected(connection, peer.epoch, peer.worker)
            case Disconnected(connection, reason):
                if connection == self._control:
                    answer = w.ControlLost(reason)
                else:
                    answer = self._peers.disconnected(connection, reason)
            case _:
                assert_never(event)
        if answer is not None:
            self._step(answer)

    def _told(self, message: m.ToWorker | m.FetchAhead) -> w.WorkerEvent | None:
        if not isinstance(message, m.FetchAhead):
            return w.ControlReceived(message)
        ahead = self._ahead

        def fetch() -> None:
            fetched = 0 if ahead is None else ahead.fetch(message.files)
            self._network.send(self._control, ControlFrame(m.encode(m.FetchedAhead(fetched))))

        self._storage.submit(fetch)
        return None

    # --- effects ----------------------------------------------------------------------------------

    def _run(self, effect: RunWork) -> None:
        self._attempt().threads[effect.subtask].submit(effect.work, effect.what)

    def _chain(self, subtask: SubtaskId) -> Chain:
        return self._attempt().threads[subtask].chain

    def _report(self, message: m.ToCoordinator) -> None:
        if isinstance(message, m.Heartbeat):
            message = self._with_calls(message)
        self._network.send(self._control, ControlFrame(m.encode(message)))

    def _with_calls(self, heartbeat: m.Heartbeat) -> m.Heartbeat:
        """Add what only the threads know: the operator that is called, and who kept the GIL."""
        threads = {} if self._loaded is None else self._loaded.threads
        numbers: list[m.SubtaskNumbers] = []
        for each in heartbeat.subtasks:
            id = SubtaskId(each.task, each.subtask)
            thread = threads.get(id)
            operator = None if thread is None else thread.calls.current
            held_ns = self._probe.held_ns(id)
            numbers.append(structs.replace(each, operator=operator, gil_ns=held_ns))
        return structs.replace(heartbeat, subtasks=numbers)

    def _send(self, connection: ConnectionId, frame: DataFrame) -> None:
        if isinstance(frame, BufferFrame):
            self._check_length(frame)
        self._network.send(connection, frame)

    def _check_length(self, frame: BufferFrame) -> None:
        """Refuse a record that no frame can hold: the connection would be lost by it, again and
        again, without a reason.

        Raises: UserCodeError.
        """
        length = too_long(frame.buffer)
        if length:
            tail = self._plan.tasks[self._edge(frame).producer].operators[-1]
            text = (
                f"a record of {length / MIB:.1f} MiB cannot travel to another worker, for a message"
                f" holds {FRAME_BYTES_MAX // MIB} MiB; cut it into several records, or send the"
                " path of a file in its place"
            )
            raise UserCodeError(tail.name, text, "", tail.built_at)

    def _edge(self, frame: DataFrame) -> EdgePlan:
        return self._plan.edges[frame.channel.edge]

    def _connect(self, epoch: int, peer: m.PeerAddress) -> ConnectionId:
        return self._network.connect((peer.host, peer.port), epoch)

    def _close_connection(self, connection: ConnectionId) -> None:
        self._network.close(connection)

    def _stop(self, effect: w.StopWorker) -> None:
        self._ended = effect

    def _write_piece(self, epoch: int, piece: Piece) -> None:
        self._log_files.write(epoch, piece)

    def _delete_pieces(self, epoch: int, pieces: Iterable[Piece]) -> None:
        self._log_files.delete(epoch, pieces)

    def _write_checkpoint(self, loaded: _Loaded, order: CheckpointWrite) -> None:
        epoch, checkpoint = order.epoch, order.checkpoint
        began_ns = now_ns()

        def write() -> None:
            try:
                written = self._written(loaded, order, self._store)
            except BaseException as error:
                # Whatever it is, user code's SystemExit included: the checkpoint fails and the job
                # goes on.
                told = isinstance(error, StoreError | HeadraceError | CorruptRun)
                reason = str(error) if told else repr(error)
                self._inbox.put(w.CheckpointPersistFailed(epoch, checkpoint, reason))
            else:
                self._inbox.put(CheckpointStored(order, written, now_ns() - began_ns))

        self._storage.submit(write)

    def _read_buffer(self, effect: ReadBuffer) -> None:
        loaded = self._attempt()

        def read() -> None:
            try:
                assert loaded.origin is not None, "restored without a checkpoint directory"
                self._inbox.put(self._read(loaded.epoch, effect, loaded.origin))
            except Exception as error:
                reason = f"in-flight data could not be read: {error}"
                self._inbox.put(w.WorkFailed(loaded.epoch, effect.subtask, reason, "", fatal=False))

        self._storage.submit(read)

    def _use_disk(self, effect: UseDisk) -> None:
        loaded = self._attempt()
        self._uses_disk = True

        def use() -> None:
            try:
                event = self._used(loaded, effect)
            except Exception as error:
                reason = f"the local disk could not be used: {error!r}"
                event = w.WorkFailed(loaded.epoch, effect.subtask, reason, "", fatal=False)
            if event is not None:
                self._inbox.put(event)

        self._disk.submit(use)

    # --- attempts ---------------------------------------------------------------------------------

    def _load(self, effect: w.LoadAttempt) -> None:
        snapshots = {SubtaskId(s.task, s.index): s for s in effect.restore}
        limits = self._settings.limits
        # A later attempt follows upon a failure, and looks at everything again.
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()
        databases = partial(open_database, folder=self._working.new)
        backend = replace(self._settings.backend, databases=databases)
        origin = origin_of(effect, self._store)
        make = partial(
            make_chain, self._plan, owner=self._settings.owner, processes=self._processes
        )
        check = partial(check_directory, self._store, self._plan.job, effect.epoch, self.machine.me)
        times = {
            id: CallTimes(self._calls.recorder(index, id))
            for index, id in enumerate(effect.subtasks)
        }
        threads = {
            id: SubtaskThread(
                effect.epoch,
                id,
                partial(
                    make,
                    id,
                    effect.epoch,
                    limits.buffer_bytes,
                    backend,
                    tell_call=times[id].tell,
                ),
                partial(
                    read_restored, self._plan, id, snapshots.get(id), origin, ahead, check=check
                ),
                self._inbox.put,
                self._failed.keep,
                times[id],
            )
            for id in effect.subtasks
        }
        persistence = persistence_of(limits)
        spill_files = SpillFiles(partial(self._working.new, "spill"))
        self._loaded = _Loaded(
            effect.epoch, persistence, origin, spill_files, threads, set(threads), ahead
        )
        for thread in threads.values():
            thread.start()

    def _opened(self, event: SubtaskOpened) -> None:
        if self._loaded is None or self._loaded.epoch != event.epoch:
            return
        self._loaded.opening.discard(event.subtask)
        self._step(w.OperatorsOpened(event.epoch, event.subtask))
        if not self._loaded.opening:
            self._drop_ahead(self._loaded)
            threads = self._loaded.threads
            hearing = frozenset(id for id, thread in threads.items() if thread.chain.hears)
            self._step(w.AttemptLoaded(event.epoch, hearing))

    def _drop_ahead(self, loaded: _Loaded) -> None:
        if loaded.ahead is not None:
            self._storage.submit(loaded.ahead.drop)
            loaded.ahead = None

    def _leave(self, loaded: _Loaded) -> None:
        self._drop_ahead(loaded)
        if self._uses_disk:
            self._disk.submit(loaded.spill_files.close)
        self._leaving.add(loaded.threads.values())

    def _close(self) -> None:
        if self._loaded is not None:
            self._drop(self._loaded.epoch)
        self._network.stop()
        self._probe.stop()
        self._clean_up()
        self._failed.join(_LEAVE_S)
        self._storage.shutdown(wait=False, cancel_futures=True)
        self._disk.shutdown(wait=False, cancel_futures=True)
        self._leaving.join(_LEAVE_S)
        self._working.close()

    def _clean_up(self) -> None:
        """Delete pieces of the log that are of no checkpoint, the one under way included."""
        self._log_files.wait(_DELETE_S)
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, PieceWritten):
                    self._log_files.delete(item.epoch, [item.piece])
        self._log_files.wait(_DELETE_S)


def _brings_data(event: NetworkEvent) -> ConnectionId | None:
    """Return the connection that brought records, events or credit; None: the event is another."""
    if isinstance(event, Received) and not isinstance(event.frame, ControlFrame):
        return event.connection
    return None
