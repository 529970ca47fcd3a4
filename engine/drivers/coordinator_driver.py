"""The coordinator's driver: one thread steps the machine, beside a network, storage and sink
threads.

As in a worker's driver, every event goes through one inbox, and effects are performed in order.
Metadata and epochs go through one storage thread, commits through one sink thread: each keeps its
order.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import assert_never

import msgspec

from headrace.channels.handshake import Identity
from headrace.channels.wire import ControlFrame
from headrace.recovery.handles import SharedFile

from ..contract import messages as m
from ..contract.clock import now_ns
from ..contract.launcher import WorkerLauncher
from ..coordinator import coordinator_events as d
from ..coordinator.coordinator import Coordinator, CoordinatorStatistics
from ..coordinator.coordinator_events import SavepointOrder
from ..coordinator.rules import Phase
from ..network.network import (
    Connected,
    ConnectionId,
    Disconnected,
    Network,
    NetworkEvent,
    Received,
    Took,
    check_reachable,
)
from .checkpoint_directory import CheckpointDirectory
from .coordinator_performer import (
    CoordinatorPerformer,
    SinkEffect,
    Sinks,
    StorageEffect,
    perform_on_sinks,
    perform_on_storage,
)
from .dropped import Dropped
from .early_workers import EarlyWorkers, StateFetched
from .remembered import Remembered
from .status import Committed, Status, WorkerSeen
from .totals import Totals, added
from .unspilled import Unspilled

_log = logging.getLogger(__name__)

#: None: look at the clock again.
InboxItem = d.CoordinatorEvent | list[NetworkEvent] | None


#: How long workers may take to leave once they are told to, before they are killed: a call of the
#: user's function does not hold up the end of a job.
_LEAVE_S = 2.0


class _ProgramEnded(Exception):
    """Python takes no more work, for the main thread has ended."""


class CoordinatorDriver(CoordinatorPerformer):
    """Runs the coordinator of one job; `listen`, `start`, then wait for `ended`.

    Workers may come before `start`: their messages wait for the machine.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        secret: bytes,
        launcher: WorkerLauncher,
        sinks: Sinks,
    ) -> None:
        self._job = job = directory.job
        self._directory = directory
        self._machine: Coordinator | None = None
        self._launcher = launcher
        self._sinks = sinks
        self._inbox: queue.SimpleQueue[InboxItem] = queue.SimpleQueue()
        self._network = Network(
            secret,
            Identity(job, "coordinator", 0, 0, 0),
            deliver=self._inbox.put,
            schemas=_no_schema,
            accept=lambda peer: peer.role == "worker",
        )
        self._early = EarlyWorkers(launcher.workers)
        self._storage = ThreadPoolExecutor(1, thread_name_prefix="coordinator-storage")
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="coordinator-sinks")
        self._thread = threading.Thread(target=self._run, name=f"coordinator-{job}", daemon=True)
        #: {worker: newest incarnation asked for}
        self._incarnations: dict[int, int] = {}
        #: {worker: the newest incarnation that registered}.
        self._seen: dict[int, WorkerSeen] = {}
        #: {connection: worker that registered over it}.
        self._connected: dict[int, int] = {}
        self._answers: dict[int, Callable[[d.RequestAnswered], None]] = {}
        self._requests = 0
        self._numbers: dict[tuple[int, int], m.SubtaskNumbers] = {}
        self._places: dict[tuple[int, int], int] = {}
        self._past: dict[tuple[int, int], Totals] = {}
        self._commits: dict[str, Committed] = {}
        self._statistics = CoordinatorStatistics()
        self._epoch_of_numbers = 0
        self._dropped = Dropped()
        self._unspilled = Unspilled()
        self._remembered = Remembered()
        self._notice_count = 0
        self._completed = 0
        self._failed_checkpoints = 0
        self._restarts = 0
        self._lock = threading.Lock()
        self.result: d.JobEnded | None = None
        #: All is decided and durable; workers have yet to end.
        self.settled = threading.Event()
        self.ended = threading.Event()

    # --- from any thread -------------------------------------------------------------------------

    def listen(self, host: str) -> tuple[str, int]:
        """Open the server on `host` and a random port; before `start`.

        Raises: AddressUnreachable.
        """
        self._network.start()
        address = self._network.listen(host)
        check_reachable(address)
        return address

    def await_workers(self, timeout_s: float) -> str:
        """Wait, before `start`, until all workers have registered.

        Returns the failure; or empty.
        """
        early = self._early
        self._hear_early(lambda: bool(early.failure) or not early.missing, timeout_s)
        if early.missing and not early.failure:
            return f"workers {', '.join(map(str, early.missing))} did not start in time"
        return early.failure

    def fetch_ahead(self, files: Mapping[int, Sequence[SharedFile]], timeout_s: float) -> int:
        """Have early workers fetch files that they will restore, by worker, before `start`.

        Returns how many bytes they have, after at most `timeout_s`.
        """
        early = self._early
        for connection, order in early.fetch(files):
            self._network.send(ConnectionId(connection), ControlFrame(m.encode(order)))
        self._hear_early(lambda: not early.fetching, timeout_s)
        return early.fetched_bytes

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
        """Ask that the job ends with a savepoint; `answer` is called in the coordinator's
        thread.
        """
        with self._lock:
            self._requests += 1
            number = self._requests
            self._answers[number] = answer
        self.post(d.StopRequested(kind, savepoint=savepoint, request=number))

    def discard(self) -> None:
        """End without a `start`: workers that have come, or still come, are sent away."""
        assert self._machine is None, "it was started"
        for event in self._early.events:
            self._step(event)
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
                notices=tuple(self._remembered.notices),
                checkpoints=tuple(self._remembered.checkpoints),
                completed=self._completed,
                workers={worker: seen.pid for worker, seen in sorted(self._seen.items())},
                seen=dict(sorted(self._seen.items())),
                places=dict(self._places),
                commits=dict(self._commits),
                coordinator=self._statistics,
                past=self._past,
                failed=self._failed_checkpoints,
            )

    # --- the owner loop --------------------------------------------------------------------------

    def _run(self) -> None:
        machine = self._machine
        assert machine is not None, "started with a machine"
        try:
            self._perform_all(machine.start(now_ns()))
            for event in self._early.events:
                self._step(event)
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
            # Events come before the clock: a driver that was asleep must not take its own sleep for
            # the workers' silence.
            while self.result is None:
                self._take(self._inbox.get_nowait())
        if deadline_ns is not None and deadline_ns <= now_ns():
            # Messages of workers may still be on their way through threads that slept as well.
            self._step(d.DriverSlept(now_ns() - deadline_ns))
            self._step(d.TimePassed())

    def _take(self, item: InboxItem) -> None:
        for event in self._events(item):
            if not isinstance(event, StateFetched):  # which came too late
                self._step(event)

    def _hear_early(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Give the early workers what comes, until `done` or for so long."""
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        with contextlib.suppress(queue.Empty):
            while not done():
                item = self._inbox.get(timeout=max(0.0, (deadline_ns - now_ns()) / 1e9))
                for event in self._events(item):
                    self._perform_all(self._early.take(event))

    def _events(self, item: InboxItem) -> Iterator[d.CoordinatorEvent | StateFetched]:
        if isinstance(item, list):
            for event in item:
                yield from self._network_event(event)
        elif isinstance(item, d.WorkerExited):
            # The end of a worker that was replaced already is no reason to replace its successor.
            if item.incarnation >= self._incarnations.get(item.worker, 0):
                yield item
        elif item is not None:
            yield item

    def _step(self, event: d.CoordinatorEvent) -> None:
        machine = self._machine
        if machine is None:
            self._perform_all(d.turned_away(event))
            return
        self._perform_all(machine.step(event, now_ns()))
        self._statistics = machine.statistics()
        if isinstance(event, d.TransactionsCommitted):
            committed = Committed(event.checkpoint, now_ns() // 1_000_000)
            with self._lock:
                self._commits = dict.fromkeys(self._sinks.names, committed)

    def _network_event(self, event: NetworkEvent) -> Iterator[d.CoordinatorEvent | StateFetched]:
        match event:
            case Received(connection, frame):
                if isinstance(frame, ControlFrame):
                    yield self._received(connection, frame.body)
            case Disconnected(connection, reason):
                self._connected.pop(connection, None)
                yield d.ConnectionLost(connection, reason)
            case Connected() | Took():
                pass
            case _:
                assert_never(event)

    def _received(self, connection: ConnectionId, body: bytes) -> d.CoordinatorEvent | StateFetched:
        try:
            message = m.decode_for_coordinator(body)
        except msgspec.DecodeError as error:
            # A peer that knows the secret and sends nonsense is broken: it is lost, the job is not.
            self._network.close(connection)
            return d.ConnectionLost(connection, f"it sent what is no message: {error}")
        match message:
            case m.FetchedAhead(fetched_bytes):
                return StateFetched(connection, fetched_bytes)
            case m.Heartbeat():
                self._heartbeat(connection, message)
            case m.Register():
                self._registered(connection, message)
        return d.MessageReceived(connection, message)

    def _heartbeat(self, connection: ConnectionId, message: m.Heartbeat) -> None:
        with self._lock:
            if message.epoch > self._epoch_of_numbers:
                self._epoch_of_numbers = message.epoch
                self._past = added(self._past, self._numbers.values())
                self._numbers.clear()
                self._places.clear()
            if message.epoch == self._epoch_of_numbers:
                self._numbers.update({(n.task, n.subtask): n for n in message.subtasks})
                if (worker := self._connected.get(connection)) is not None:
                    self._places.update({(n.task, n.subtask): worker for n in message.subtasks})
            texts = self._dropped.notices(self._numbers.values())
            texts += self._unspilled.notices(self._numbers.values())
        for text in texts:
            self.warn(text)

    def _registered(self, connection: ConnectionId, message: m.Register) -> None:
        with self._lock:
            self._connected[connection] = message.worker
            known = self._seen.get(message.worker)
            if known is None or message.incarnation >= known.incarnation:
                seen = WorkerSeen(message.pid, message.host, message.incarnation)
                self._seen[message.worker] = seen

    # --- effects ---------------------------------------------------------------------------------

    def _perform_all(self, effects: list[d.CoordinatorEffect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _send(self, connection: int, message: m.ToWorker) -> None:
        self._network.send(ConnectionId(connection), ControlFrame(m.encode(message)))

    def _close_connection(self, connection: int) -> None:
        self._network.close(ConnectionId(connection))

    def _store(self, effect: StorageEffect) -> None:
        def run() -> None:
            for event in perform_on_storage(effect, self._directory):
                self._inbox.put(event)

        self._submit(self._storage, run)

    def _sink(self, effect: SinkEffect) -> None:
        def run() -> None:
            self._inbox.put(perform_on_sinks(effect, self._sinks, self._directory))

        self._submit(self._committing, run)

    def _replace(self, worker: int) -> None:
        number = self._incarnations.get(worker, 0) + 1
        self._incarnations[worker] = number
        known = self._seen.get(worker)
        lost = -1 if known is None else known.incarnation
        self._launcher.replace(worker, number, lost)

    def _answer(self, answer: d.RequestAnswered) -> None:
        self._answers.pop(answer.request)(answer)

    def _end(self, ended: d.JobEnded) -> None:
        self.result = ended

    def _submit(self, pool: ThreadPoolExecutor, run: Callable[[], None]) -> None:
        try:
            pool.submit(run)
        except RuntimeError as ended:
            # Before `_close` only Python shuts the pools down, when the main thread has ended.
            raise _ProgramEnded from ended

    def _notice(self, notice: d.Notice) -> None:
        loud = notice.kind is d.NoticeKind.WARNING
        _log.log(
            logging.WARNING if loud else logging.INFO, "%s: %s", notice.kind.value, notice.text
        )
        notice = replace(notice, at_ms=now_ns() // 1_000_000)
        with self._lock:
            self._notice_count += 1
            self._remembered.add(self._notice_count, notice)
            self._completed += notice.checkpoint is not None
            self._failed_checkpoints += notice.failed is not None
            if notice.kind is d.NoticeKind.ATTEMPT_FAILED:
                self._restarts += 1

    def _close(self) -> None:
        self._committing.shutdown(wait=True)
        self._storage.shutdown(wait=True)
        self.settled.set()
        stopping = threading.Thread(target=self._stop_launcher, name=f"stopping-{self._job}")
        stopping.start()
        # Workers that were still starting register now, and hear only here that the job is over.
        while (item := self._inbox.get()) is not None:
            if self._machine is None or self._machine.phase is Phase.ENDED:
                self._take(item)
        self._network.stop()

    def _stop_launcher(self) -> None:
        try:
            self._launcher.stop(timeout_s=_LEAVE_S)
        finally:
            self._inbox.put(None)


def _no_schema(edge: int) -> object:
    raise AssertionError(f"the coordinator has no edge {edge}")
