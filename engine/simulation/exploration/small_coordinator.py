"""A driver process of a small scope: the coordinator, with its orders as values.

Orders go to storage and sinks. The functions on storage are the product's own (`drivers/start.py`,
`drivers/coordinator_performer.py`); each runs in one go when its answer comes. A process that dies
meanwhile leaves any number of its first calls done (`partly`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.recovery import assignment, catalog
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot

from ...contract import messages as m
from ...contract.errors import CommitLost
from ...contract.execution import ExecutionPlan
from ...coordinator import coordinator_events as d
from ...coordinator.coordinator import Coordinator
from ...coordinator.rules import CheckpointRules, CoordinatorRules, Phase, RestartRules
from ...drivers.checkpoint_directory import CheckpointDirectory
from ...drivers.coordinator_performer import (
    CoordinatorPerformer,
    SinkEffect,
    Sinks,
    StorageEffect,
    perform_on_sinks,
    perform_on_storage,
)
from ...drivers.restore import Restore, new_tasks
from ...drivers.start import Start, prepare
from ..memory_store import MemoryStore
from ..sink import SystemCommitter, TransactionStatus
from ..watch import OUR_FAULTS
from .interning import in_order
from .small_scope import INTERVAL_NS, MOMENT_NS, NEVER_NS, SOURCES, Scope
from .small_worker import Output

#: {path: bytes}, of the files that a coordinator reads; a worker's are empty.
Files = dict[str, bytes]


@dataclass(slots=True)
class System:
    """The sinks' outside system. `transactions`: {id: (status, records)}."""

    transactions: dict[str, tuple[TransactionStatus, tuple[Hashable, ...]]] = field(
        default_factory=dict
    )

    def of(self, status: TransactionStatus) -> list[Hashable]:
        """Return all records of transactions with this status."""
        return [id for s, ids in self.transactions.values() if s is status for id in ids]


class Died(BaseException):
    """The caller is dead: no further call is made.

    Not an Exception: no handler may catch its own death.
    """


class Calls(MemoryStore):
    """Makes calls to storage and sinks; of changing calls only the first `allowed`, if given."""

    def __init__(self, files: Files, system: System, allowed: int | None = None) -> None:
        super().__init__()
        self.objects.update(files)
        self.system = System(dict(system.transactions))
        self._left = allowed

    def _changes(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise Died
            self._left -= 1

    def _write(self, path: str, data: bytes) -> None:
        self._changes()
        super()._write(path, data)

    def _remove(self, path: str) -> None:
        if path in self.objects:
            self._changes()
            super()._remove(path)

    def sink(self, method: str, *arguments: Any) -> Any:
        """A call to the sinks' system: `commit`, `abort` or `open`."""
        transactions = self.system.transactions
        if method == "open":
            unsettled = (TransactionStatus.OPEN, TransactionStatus.PREPARED)
            return [id for id, (status, _) in transactions.items() if status in unsettled]
        (id,) = arguments
        status, records = transactions[id]
        wanted = TransactionStatus.COMMITTED if method == "commit" else TransactionStatus.ABORTED
        if method == "commit" and status is TransactionStatus.ABORTED:
            raise CommitLost(f"transaction {id} was aborted")
        if TransactionStatus.COMMITTED not in (status, wanted) or status is not wanted:
            self._changes()
            settled = status is TransactionStatus.COMMITTED
            transactions[id] = (status if settled else wanted, records)
        return None


@dataclass(slots=True)
class Assign:
    """Maps a checkpoint onto the plan."""

    plan: ExecutionPlan

    def __call__(self, metadata: CheckpointMetadata) -> Sequence[SubtaskSnapshot]:
        return assignment.assign(metadata, new_tasks(self.plan), self.plan.max_parallelism)


@dataclass(slots=True)
class CoordinatorState:
    """A driver process, from its start.

    Attributes:
        machine: None until storage has answered the calls of the start.
        triggered: number of the scope's periodic checkpoints used up.
        expired: likewise of expiries.
    """

    scope: Scope
    plan: ExecutionPlan
    machine: Coordinator | None = None
    clock_ns: int = 0
    triggered: int = 0
    expired: int = 0
    #: {worker: its incarnation}
    incarnations: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(SOURCES), 0))
    storing: deque[StorageEffect] = field(default_factory=deque)
    sinking: deque[SinkEffect] = field(default_factory=deque)

    @property
    def begun(self) -> Coordinator:
        """The machine, which is there once the start is through."""
        assert self.machine is not None, "storage has yet to answer"
        return self.machine

    @property
    def stores(self) -> bool:
        """Storage has something to answer."""
        return self.machine is None or bool(self.storing)

    @property
    def deaf(self) -> bool:
        """The job has ended."""
        return self.machine is not None and self.machine.phase is Phase.ENDED

    @property
    def ended(self) -> bool:
        """The job has ended, and no order is under way."""
        return self.deaf and not self.storing and not self.sinking

    # --- what may happen -------------------------------------------------------------------------

    def timer_due(self) -> bool:
        """The clock may come to the next deadline, within the scope's limits."""
        machine = self.machine
        deadline_ns = None if machine is None else machine.next_deadline_ns()
        if machine is None or deadline_ns is None or deadline_ns >= NEVER_NS:
            return False
        if machine.phase is Phase.RUNNING and machine._checkpoints._pending:
            return self.expired < self.scope.expiries
        if machine.phase is Phase.RUNNING:
            return self.triggered < self.scope.periodic
        return True

    def pass_time(self) -> list[Output]:
        """The clock comes to the next deadline."""
        machine = self.begun
        deadline_ns = machine.next_deadline_ns()
        assert deadline_ns is not None, "nobody waits"
        self.clock_ns = max(self.clock_ns, deadline_ns)
        if machine.phase is Phase.RUNNING:
            pending = bool(machine._checkpoints._pending)
            self.expired += pending
            self.triggered += not pending
        return self.post(d.TimePassed())

    def connection(self, worker: int) -> int:
        """Number of the connection to the worker's newest incarnation."""
        return worker + SOURCES * self.incarnations[worker]

    def lost(self, worker: int) -> list[Output]:
        """A worker's process has ended: the connection tells, and then the launcher."""
        incarnation = self.incarnations[worker]
        outputs = self.post(d.ConnectionLost(self.connection(worker), "reset"))
        return outputs + self.post(d.WorkerExited(worker, incarnation, "it died"))

    def post(self, event: d.CoordinatorEvent) -> list[Output]:
        """Give the machine an event and perform its effects."""
        outputs: list[Output] = []
        if not self.deaf:
            effects = self.begun.step(event, self.clock_ns)
            self.begun.check()
            self._perform_all(effects, outputs)
        return outputs

    def store(self, calls: Calls) -> list[Output]:
        """The start, or the oldest order to storage, is carried out and answered."""
        outputs: list[Output] = []
        if self.machine is None:
            start = self._prepare(calls)
            self.machine = start.coordinator(
                self.plan, SOURCES, _rules(self.scope), Assign(self.plan)
            )
            self._perform_all(self.machine.start(0), outputs)
            return outputs
        effect = self.storing.popleft()
        for event in perform_on_storage(effect, _directory(self.plan.job, calls)):
            if isinstance(event, d.MetadataWritten):
                assert isinstance(effect, d.WriteMetadata), effect
                outputs.append(Output("complete", effect.metadata))
            outputs += self.post(event)
        return outputs

    def sink(self, calls: Calls) -> list[Output]:
        """The oldest order to the sinks is carried out and answered."""
        event = _on_sinks(self.sinking.popleft(), self.plan.job, calls)
        refused = [Output("violation", event.reason)] if isinstance(event, d.SinkFailed) else []
        return refused + self.post(event)

    def partly(self, calls: Calls, *, sinks_first: bool) -> None:
        """Let the process die amid its orders: `calls` makes some of the calls. Raises Died."""
        job = self.plan.job
        orders: list[Callable[[], object]] = []
        if self.machine is None:
            orders.append(partial(self._prepare, calls))
        orders += [
            partial(perform_on_storage, effect, _directory(job, calls))
            for effect in list(self.storing)[:1]
        ]
        orders += [partial(_on_sinks, effect, job, calls) for effect in list(self.sinking)[:1]]
        for order in orders[::-1] if sinks_first else orders:
            order()

    def _prepare(self, calls: Calls) -> Start:
        directory = _directory(self.plan.job, calls)
        return prepare(directory, lambda: _newest(directory))

    def _perform_all(self, effects: list[d.CoordinatorEffect], outputs: list[Output]) -> None:
        performer = _Performer(self, outputs)
        for effect in effects:
            performer.perform(effect)


class _Performer(CoordinatorPerformer):
    """Puts effects on storage and sinks into the state's queues, and all others into `outputs`."""

    def __init__(self, state: CoordinatorState, outputs: list[Output]) -> None:
        self._state = state
        self._outputs = outputs

    def perform(self, effect: d.CoordinatorEffect) -> None:
        """Perform an effect."""
        self._perform(effect)

    def _send(self, connection: int, message: m.ToWorker) -> None:
        worker = connection % SOURCES
        if connection == self._state.connection(worker):
            self._outputs.append(Output("worker", (worker, message)))

    def _close_connection(self, connection: int) -> None:
        pass  # the worker is dead, or stops by itself

    def _store(self, effect: StorageEffect) -> None:
        self._state.storing.append(effect)

    def _sink(self, effect: SinkEffect) -> None:
        self._state.sinking.append(effect)

    def _replace(self, worker: int) -> None:
        self._state.incarnations[worker] += 1
        self._outputs.append(Output("launch", (worker, self._state.incarnations[worker])))

    def _answer(self, answer: d.RequestAnswered) -> None:
        raise AssertionError("nobody asks for anything here")

    def _notice(self, notice: d.Notice) -> None:
        failed = notice.kind is d.NoticeKind.ATTEMPT_FAILED
        if failed and any(each in notice.text for each in OUR_FAULTS):
            self._outputs.append(Output("violation", notice.text))

    def _end(self, ended: d.JobEnded) -> None:
        if ended.outcome is not d.Outcome.FINISHED:
            self._outputs.append(Output("violation", f"the job failed: {ended.reason}"))


def _rules(scope: Scope) -> CoordinatorRules:
    return CoordinatorRules(
        mode=scope.mode,
        checkpoints=CheckpointRules(
            interval_ns=INTERVAL_NS,
            min_pause_ns=0,
            timeout_ns=MOMENT_NS if scope.expiries else NEVER_NS,
            tolerable_failures=1000,
            retain=1,
            concurrent=1,
        ),
        restarts=RestartRules(1000, MOMENT_NS, MOMENT_NS),
        heartbeat_timeout_ns=2 * NEVER_NS,
        register_timeout_ns=2 * NEVER_NS,
    )


def _directory(job: str, calls: Calls) -> CheckpointDirectory:
    return CheckpointDirectory(job, calls, sleep=_no_sleep)


def _newest(directory: CheckpointDirectory) -> Restore:
    """Find the newest complete checkpoint; `resolve` would miss the content of workers' files."""
    store, job = directory.at(""), directory.job
    newest = max(catalog.complete_checkpoints(store, job), default=None)
    metadata = None if newest is None else catalog.load(store, job, newest)
    return Restore(metadata, "", catalog.next_checkpoint_number(store, job))


def _no_sleep(seconds: float) -> None:
    raise AssertionError("storage of a small scope does not fail")


def _on_sinks(effect: SinkEffect, job: str, calls: Calls) -> d.CoordinatorEvent:
    sinks = Sinks({"sink": SystemCommitter("sink", calls.sink)})
    return perform_on_sinks(effect, sinks, _directory(job, calls))


def without_history(state: CoordinatorState) -> None:
    """Forget data that no later step reads, and the order of events where order has no meaning."""
    machine = state.machine
    if machine is None:
        return
    machine.fenced = 0
    checkpoints = machine._checkpoints
    written = [] if checkpoints._writing is None else [checkpoints._writing[0]]
    for pending in (*checkpoints._pending.values(), *written):
        pending.acknowledged = dict(sorted(pending.acknowledged.items()))
    machine._finished = in_order(machine._finished)
    checkpoints._channels = in_order(checkpoints._channels)
    workers = machine._workers
    workers._members = dict(sorted(workers._members.items()))
    workers._newest = dict(sorted(workers._newest.items()))
    workers._connections = dict(sorted(workers._connections.items()))
    for member in workers._members.values():
        member.seen_ns = member.heard_ns = 0
