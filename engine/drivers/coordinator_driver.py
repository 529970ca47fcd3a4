"""The coordinator's driver: one thread that steps the machine, a network, and threads for storage and sinks.

It is the mirror image of the worker's: everything that happens becomes an event in one inbox, and effects are performed in order.
Metadata and epochs go through one storage thread, commits through one sink thread, so that each keeps its order.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from headrace.channels.handshake import Identity
from headrace.channels.wire import ControlFrame
from headrace.recovery.metadata import CheckpointMetadata, SharedFile
from headrace.recovery.store import Store

from ..contract import messages as m
from ..contract.clock import now_ns
from ..contract.launcher import WorkerLauncher
from ..coordinator import coordinator_events as d
from ..coordinator.coordinator import Coordinator
from ..coordinator.coordinator_events import SavepointOrder
from ..coordinator.rules import Phase
from ..network.network import (
    Connected,
    ConnectionId,
    Disconnected,
    Network,
    NetworkEvent,
    Received,
)
from .claiming import release
from .coordinator_performer import (
    Sinks,
    claim_epoch,
    delete_files,
    find_checkpoint,
    recover_sinks,
    withdraw_checkpoints,
    write_metadata,
)
from .standby import InboxItem, Standby

_log = logging.getLogger(__name__)

#: Notices and checkpoints that a status remembers.
_REMEMBERED = 1000


class _ProgramEnded(Exception):
    """Python takes no more work, for the main thread has ended."""


@dataclass(frozen=True, slots=True)
class Status:
    """A look at a running job.

    Attributes:
        numbers: {(task, subtask): its latest numbers}, in the attempt that runs.
        notices: (running number, notice), the latest ones, oldest first.
        checkpoints: the latest complete ones, oldest first.
        completed: how many completed in all.
        workers: {worker: process id of its newest incarnation}, on the machine where that runs.
    """

    phase: Phase
    epoch: int
    restarts: int
    numbers: Mapping[tuple[int, int], m.SubtaskNumbers]
    notices: tuple[tuple[int, d.Notice], ...]
    checkpoints: tuple[CheckpointMetadata, ...]
    completed: int
    workers: Mapping[int, int] = field(default_factory=dict)


class CoordinatorDriver:
    """Runs the coordinator of one job; `listen`, `start`, then wait for `ended`.

    Workers may come before `start`: what they say waits for the machine.
    """

    def __init__(
        self,
        job: str,
        secret: bytes,
        launcher: WorkerLauncher,
        store: Store | None,
        sinks: Sinks,
        directory: str = "",
    ) -> None:
        self._job = job
        #: URL of `store`.
        self._directory = directory
        self._machine: Coordinator | None = None
        self._launcher = launcher
        self._store = store
        self._sinks = sinks
        self._inbox: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()
        self._network = Network(
            secret,
            Identity(job, "coordinator", 0, 0, 0),
            deliver=self._inbox.put,
            schemas=_no_schema,
            accept=lambda peer: peer.role == "worker",
        )
        self._standby = Standby(self._inbox, self._network, self._replace)
        self._storage = ThreadPoolExecutor(1, thread_name_prefix="coordinator-storage")
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="coordinator-sinks")
        self._thread = threading.Thread(target=self._run, name=f"coordinator-{job}", daemon=True)
        #: {worker: newest incarnation asked for}
        self._incarnations: dict[int, int] = {}
        #: {worker: (incarnation, process id)}, of the newest that registered.
        self._pids: dict[int, tuple[int, int]] = {}
        self._answers: dict[int, Callable[[d.RequestAnswered], None]] = {}
        self._requests = 0
        self._numbers: dict[tuple[int, int], m.SubtaskNumbers] = {}
        self._epoch_of_numbers = 0
        self._notices: deque[tuple[int, d.Notice]] = deque(maxlen=_REMEMBERED)
        self._checkpoints: deque[CheckpointMetadata] = deque(maxlen=_REMEMBERED)
        self._notice_count = 0
        self._completed = 0
        self._restarts = 0
        self._lock = threading.Lock()
        self.result: d.JobEnded | None = None
        #: All is decided and durable; what remains is that the workers end.
        self.settled = threading.Event()
        self.ended = threading.Event()

    # --- from any thread ----------------------------------------------------------------------------------------

    def listen(self, host: str) -> tuple[str, int]:
        """Open the server on `host` and a random port; before `start`."""
        self._network.start()
        return self._network.listen(host)

    def await_workers(self, workers: int, timeout_s: float) -> str:
        """Wait, before `start`, until so many workers have registered. Returns what went wrong; empty: nothing."""
        return self._standby.await_workers(workers, timeout_s)

    def fetch_ahead(self, files: Mapping[int, Sequence[SharedFile]], timeout_s: float) -> int:
        """Have workers that have registered fetch what they will restore, by worker, before `start`; returns how many bytes they have."""
        return self._standby.fetch_ahead(files, timeout_s)

    def start(self, machine: Coordinator) -> None:
        """Let the machine begin; the workers have been launched."""
        self._machine = machine
        self._thread.start()

    def post(self, event: d.CoordinatorEvent) -> None:
        """Something has happened."""
        self._inbox.put(event)

    def warn(self, text: str) -> None:
        """Tell the users something, loudly."""
        self.note(d.NoticeKind.WARNING, text)

    def note(self, kind: d.NoticeKind, text: str) -> None:
        """Tell the users something."""
        self._notice(d.Notice(kind, text))

    def request_checkpoint(
        self,
        answer: Callable[[d.RequestAnswered], None],
        savepoint: SavepointOrder | None = None,
    ) -> None:
        """Ask for a checkpoint, or a savepoint; `answer` is called in the coordinator's thread."""
        with self._lock:
            self._requests += 1
            number = self._requests
            self._answers[number] = answer
        self.post(d.CheckpointRequested(number, savepoint))

    def request_stop(
        self,
        answer: Callable[[d.RequestAnswered], None],
        kind: d.StopKind,
        savepoint: SavepointOrder,
    ) -> None:
        """Ask that the job ends with a savepoint; `answer` is called in the coordinator's thread."""
        with self._lock:
            self._requests += 1
            number = self._requests
            self._answers[number] = answer
        self.post(d.StopRequested(kind, savepoint=savepoint, request=number))

    def discard(self) -> None:
        """End without a `start`: workers that have come, or still come, are sent away."""
        assert self._machine is None, "it was started"
        for item in self._standby.early:
            self._take(item)
        self._close()

    def status(self) -> Status:
        """What can be seen now."""
        machine = self._machine
        assert machine is not None, "nobody looks before the start"
        with self._lock:
            return Status(
                phase=machine.phase,
                epoch=machine.epoch,
                restarts=self._restarts,
                numbers=dict(self._numbers),
                notices=tuple(self._notices),
                checkpoints=tuple(self._checkpoints),
                completed=self._completed,
                workers={worker: pid for worker, (_, pid) in sorted(self._pids.items())},
            )

    # --- the owner loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        machine = self._machine
        assert machine is not None, "started with a machine"
        try:
            self._perform_all(machine.start(now_ns()))
            for item in self._standby.early:
                self._take(item)
            while self.result is None:
                self._turn(machine)
        except _ProgramEnded:
            text = (
                f"the program ended while job {self._job!r} ran: it ends at once, as if cancelled"
            )
            _log.warning("%s; call wait() on its handle to let it go on", text)
            self.result = d.JobEnded(d.Outcome.STOPPED, text, "")
        except BaseException as broken:
            _log.exception("the coordinator of job %r broke", self._job)
            self.result = d.JobEnded(d.Outcome.FAILED, f"the coordinator broke: {broken!r}", "")
        finally:
            self._close()
            self.ended.set()

    def _turn(self, machine: Coordinator) -> None:
        deadline_ns = machine.next_deadline_ns()
        wait_s = None if deadline_ns is None else max(0.0, (deadline_ns - now_ns()) / 1e9)
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=wait_s))
            # All that has come, before time is looked at: a driver that was asleep must not take its own sleep for others' silence.
            while self.result is None:
                self._take(self._inbox.get_nowait())
        if deadline_ns is not None and deadline_ns <= now_ns():
            self._step(d.TimePassed())

    def _take(self, item: InboxItem) -> None:
        if isinstance(item, list):
            for event in item:
                self._network_event(event)
        elif isinstance(item, d.WorkerExited):
            # That a worker has ended which was replaced already is no news, and no reason to replace its successor.
            if item.incarnation >= self._incarnations.get(item.worker, 0):
                self._step(item)
        elif item is not None:
            self._step(item)

    def _step(self, event: d.CoordinatorEvent) -> None:
        machine = self._machine
        self._perform_all(
            d.turned_away(event) if machine is None else machine.step(event, now_ns())
        )

    def _network_event(self, event: NetworkEvent) -> None:
        match event:
            case Received(connection, frame):
                if isinstance(frame, ControlFrame):
                    self._received(connection, frame.body)
            case Disconnected(connection, reason):
                self._step(d.ConnectionLost(connection, reason))
            case Connected():
                pass
            case _:
                assert_never(event)

    def _received(self, connection: ConnectionId, body: bytes) -> None:
        try:
            message = m.decode_for_coordinator(body)
        except msgspec.DecodeError as error:
            # Whoever sends this is broken, though it knows the secret: it is lost, the job is not.
            self._network.close(connection)
            self._step(d.ConnectionLost(connection, f"it sent what is no message: {error}"))
            return
        if isinstance(message, m.FetchedAhead):
            return  # too late to be waited for
        if isinstance(message, m.Heartbeat):
            self._heartbeat(message)
        if isinstance(message, m.Register):
            self._registered(message)
        self._step(d.MessageReceived(connection, message))

    def _heartbeat(self, message: m.Heartbeat) -> None:
        with self._lock:
            if message.epoch > self._epoch_of_numbers:
                self._epoch_of_numbers = message.epoch
                self._numbers.clear()
            if message.epoch == self._epoch_of_numbers:
                self._numbers.update({(n.task, n.subtask): n for n in message.subtasks})

    def _registered(self, message: m.Register) -> None:
        process = (message.incarnation, message.pid)
        with self._lock:
            self._pids[message.worker] = max(process, self._pids.get(message.worker, process))

    # --- effects ------------------------------------------------------------------------------------------------

    def _perform_all(self, effects: list[d.CoordinatorEffect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: d.CoordinatorEffect) -> None:
        match effect:
            case d.SendMessage(connection, message):
                self._network.send(ConnectionId(connection), ControlFrame(m.encode(message)))
            case d.CloseConnection(connection):
                self._network.close(ConnectionId(connection))
            case d.ClaimEpoch(above):
                self._store_then(lambda: [claim_epoch(self._store, self._job, above)])
            case d.WriteMetadata(metadata, target, last):
                self._store_then(
                    lambda: write_metadata(self._store, metadata, target=target, last=last)
                )
            case d.FindCheckpoint(below):
                self._store_then(lambda: [find_checkpoint(self._store, self._job, below)])
            case d.WithdrawCheckpoints(numbers, patient):
                self._store_then(
                    lambda: [withdraw_checkpoints(self._store, self._job, numbers, patient=patient)]
                )
            case d.DeleteFiles(what, patient):
                self._store_then(
                    lambda: [delete_files(self._store, self._job, what, patient=patient)]
                )
            case d.ReleaseClaim(place, patient):
                self._store_then(
                    lambda: [
                        release(self._store, self._job, self._directory, place, patient=patient)
                    ]
                )
            case d.RecoverSinks(epoch, records):
                self._commit_then(
                    lambda: recover_sinks(self._store, self._job, self._sinks, epoch, records)
                )
            case d.CommitTransactions(checkpoint, records):
                self._commit_then(lambda: self._sinks.commit(checkpoint, records))
            case d.ReplaceWorker(worker):
                self._replace(worker)
            case d.RequestAnswered():
                self._answers.pop(effect.request)(effect)
            case d.Notice():
                self._notice(effect)
            case d.JobEnded():
                self.result = effect
            case _:
                assert_never(effect)

    def _replace(self, worker: int) -> None:
        number = self._incarnations.get(worker, 0) + 1
        self._incarnations[worker] = number
        lost, _ = self._pids.get(worker, (-1, 0))
        self._launcher.replace(worker, number, lost)

    def _store_then(self, do: Callable[[], list[d.CoordinatorEvent]]) -> None:
        def run() -> None:
            for event in do():
                self._inbox.put(event)

        self._submit(self._storage, run)

    def _commit_then(self, do: Callable[[], d.CoordinatorEvent]) -> None:
        self._submit(self._committing, lambda: self._inbox.put(do()))

    def _submit(self, pool: ThreadPoolExecutor, run: Callable[[], None]) -> None:
        try:
            pool.submit(run)
        except RuntimeError as ended:
            # Nobody shuts the pools down before `_close` but Python, when the main thread has come to its end.
            raise _ProgramEnded from ended

    def _notice(self, notice: d.Notice) -> None:
        loud = notice.kind is d.NoticeKind.WARNING
        _log.log(
            logging.WARNING if loud else logging.INFO, "%s: %s", notice.kind.value, notice.text
        )
        with self._lock:
            self._notice_count += 1
            self._notices.append((self._notice_count, notice))
            if notice.checkpoint is not None:
                self._checkpoints.append(notice.checkpoint)
                self._completed += 1
            if notice.kind is d.NoticeKind.ATTEMPT_FAILED:
                self._restarts += 1

    def _close(self) -> None:
        self._committing.shutdown(wait=True)
        self._storage.shutdown(wait=True)
        self.settled.set()
        stopping = threading.Thread(target=self._stop_launcher, name=f"stopping-{self._job}")
        stopping.start()
        # Workers that were still starting register now. Nobody else tells them that it is over.
        while (item := self._inbox.get()) is not None:
            if self._machine is None or self._machine.phase is Phase.ENDED:
                self._take(item)
        self._network.stop()

    def _stop_launcher(self) -> None:
        try:
            self._launcher.stop(timeout_s=10.0)
        finally:
            self._inbox.put(None)


def _no_schema(edge: int) -> object:
    raise AssertionError(f"the coordinator has no edge {edge}")
