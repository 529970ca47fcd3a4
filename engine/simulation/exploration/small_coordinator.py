"""A driver process of a small scope: the coordinator machine, and as values its storage, its sinks' system and what it has ordered there.

The storage functions are the product's own (`drivers/coordinator_performer.py`); each runs in one go when its answer comes. A process that dies
meanwhile leaves any number of its first calls done (`partly`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from headrace.recovery import assignment, catalog
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import AlreadyExists, NotFound

from ...contract.execution import ExecutionPlan
from ...coordinator import coordinator_events as d
from ...coordinator.coordinator import Coordinator
from ...coordinator.rules import CheckpointRules, CoordinatorRules, Phase, RestartRules
from ...drivers.coordinator_performer import (
    Sinks,
    claim_epoch,
    delete_files,
    find_checkpoint,
    withdraw_checkpoints,
    write_metadata,
)
from ...drivers.restore import new_tasks
from ..sink import SystemCommitter, TransactionStatus
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
        """All records of transactions that stand so."""
        return [id for s, ids in self.transactions.values() if s is status for id in ids]


class Died(BaseException):
    """The caller is dead: no further call is made. Not an Exception: nobody handles one's own death."""


class Calls:
    """Makes calls to storage and sinks; only the first `allowed` that change something, if given."""

    def __init__(self, files: Files, system: System, allowed: int | None = None) -> None:
        self.files = dict(files)
        self.system = System(dict(system.transactions))
        self._left = allowed

    def _changes(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise Died
            self._left -= 1

    def put(self, path: str, data: bytes) -> None:
        """See `Store.put`."""
        self._changes()
        self.files[path] = bytes(data)

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        if path in self.files:
            raise AlreadyExists(path, "already exists")
        self.put(path, data)

    def get(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        if path not in self.files:
            raise NotFound(path, "not found")
        return self.files[path][offset : None if length is None else offset + length]

    def list(self, prefix: str) -> list[str]:
        """See `Store.list`."""
        return sorted(path for path in self.files if path.startswith(prefix))

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        if path in self.files:
            self._changes()
            del self.files[path]

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
            raise LookupError(f"transaction {id} was aborted")
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
    """One driver process. `triggered`, `expired`: how much of the scope is used up."""

    scope: Scope
    plan: ExecutionPlan
    machine: Coordinator
    clock_ns: int = 0
    triggered: int = 0
    expired: int = 0
    #: {worker: its incarnation}
    incarnations: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(SOURCES), 0))
    storing: deque[d.CoordinatorEffect] = field(default_factory=deque)
    sinking: deque[d.CoordinatorEffect] = field(default_factory=deque)

    @staticmethod
    def begin(
        scope: Scope, plan: ExecutionPlan, files: Files, used: tuple[int, int]
    ) -> tuple[CoordinatorState, list[Output]]:
        """The job's program is started: it goes on from the newest complete checkpoint. `used`: of the scope, see there."""
        store: Any = Calls(files, System())
        newest = max(catalog.complete_checkpoints(store, plan.job), default=None)
        machine = Coordinator(
            plan,
            [[worker] for worker in range(SOURCES)],
            _rules(scope),
            restore=None if newest is None else catalog.load(store, plan.job, newest),
            checkpoint_next=catalog.next_checkpoint_number(store, plan.job),
            assign=Assign(plan),
        )
        state = CoordinatorState(scope, plan, machine, triggered=used[0], expired=used[1])
        outputs: list[Output] = []
        state._perform_all(machine.start(0), outputs)
        return state, outputs

    @property
    def ended(self) -> bool:
        """The job has ended, and nothing is under way."""
        return self.machine.phase is Phase.ENDED and not self.storing and not self.sinking

    # --- what may happen ----------------------------------------------------------------------------------------

    def timer_due(self) -> bool:
        """Its clock may come to the next deadline, as far as the scope lets it."""
        deadline_ns = self.machine.next_deadline_ns()
        if deadline_ns is None or deadline_ns >= NEVER_NS:
            return False
        checkpoints = self.machine._checkpoints
        if self.machine.phase is Phase.RUNNING and checkpoints._pending:
            return self.expired < self.scope.expiries
        if self.machine.phase is Phase.RUNNING:
            return self.triggered < self.scope.periodic
        return True

    def pass_time(self) -> list[Output]:
        """The clock comes to the next deadline."""
        deadline_ns = self.machine.next_deadline_ns()
        assert deadline_ns is not None, "nobody waits"
        self.clock_ns = max(self.clock_ns, deadline_ns)
        if self.machine.phase is Phase.RUNNING:
            pending = bool(self.machine._checkpoints._pending)
            self.expired += pending
            self.triggered += not pending
        return self.post(d.TimePassed())

    def connection(self, worker: int) -> int:
        """Number of the connection to the worker's newest incarnation."""
        return worker + SOURCES * self.incarnations[worker]

    def lost(self, worker: int) -> list[Output]:
        """The worker's process is no more: its connection says so, then the launcher, which knows of those that never registered."""
        incarnation = self.incarnations[worker]
        outputs = self.post(d.ConnectionLost(self.connection(worker), "reset"))
        return outputs + self.post(d.WorkerExited(worker, incarnation, "it died"))

    def post(self, event: d.CoordinatorEvent) -> list[Output]:
        """Give the machine an event and do what it says."""
        outputs: list[Output] = []
        if self.machine.phase is not Phase.ENDED:
            effects = self.machine.step(event, self.clock_ns)
            self.machine.check()
            self._perform_all(effects, outputs)
        return outputs

    def store(self, calls: Calls) -> list[Output]:
        """The oldest order to storage is carried out and answered."""
        effect = self.storing.popleft()
        answers = _storage_function(effect, self.plan.job)(calls)
        outputs: list[Output] = []
        for event in answers if isinstance(answers, list) else [answers] if answers else []:
            if isinstance(event, d.MetadataWritten):
                assert isinstance(effect, d.WriteMetadata), effect
                outputs.append(Output("complete", effect.metadata))
            outputs += self.post(event)
        return outputs

    def sink(self, calls: Calls) -> list[Output]:
        """The oldest order to the sinks is carried out and answered."""
        event = _sink_function(self.sinking.popleft())(calls)
        refused = [Output("violation", event.reason)] if isinstance(event, d.SinkFailed) else []
        return refused + self.post(event)

    def partly(self, calls: Calls, *, sinks_first: bool) -> None:
        """The process has died amid its orders: `calls` lets some of their calls be made. Raises Died."""
        functions = [_storage_function(effect, self.plan.job) for effect in list(self.storing)[:1]]
        functions += [_sink_function(effect) for effect in list(self.sinking)[:1]]
        for function in functions[::-1] if sinks_first else functions:
            function(calls)

    # --- effects ------------------------------------------------------------------------------------------------

    def _perform_all(self, effects: list[d.CoordinatorEffect], outputs: list[Output]) -> None:
        for effect in effects:
            match effect:
                case d.SendMessage(connection, message):
                    if connection == self.connection(connection % SOURCES):
                        outputs.append(Output("worker", (connection % SOURCES, message)))
                case (
                    d.ClaimEpoch()
                    | d.WriteMetadata()
                    | d.FindCheckpoint()
                    | d.WithdrawCheckpoints()
                    | d.DeleteFiles()
                ):
                    self.storing.append(effect)
                case d.RecoverSinks() | d.CommitTransactions():
                    self.sinking.append(effect)
                case d.ReplaceWorker(worker):
                    self.incarnations[worker] += 1
                    outputs.append(Output("launch", (worker, self.incarnations[worker])))
                case d.Notice(d.NoticeKind.ATTEMPT_FAILED, text):
                    if "broken invariant" in text or "does not tile" in text:
                        outputs.append(Output("violation", text))
                case d.JobEnded(outcome, reason, _):
                    if outcome is not d.Outcome.FINISHED:
                        outputs.append(Output("violation", f"the job failed: {reason}"))
                case d.Notice() | d.RequestAnswered() | d.CloseConnection() | d.ReleaseClaim():
                    pass  # nobody claims anything here
                case _:
                    assert_never(effect)


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


def _storage_function(effect: d.CoordinatorEffect, job: str) -> Callable[[Any], Any]:
    match effect:
        case d.ClaimEpoch(above):
            return partial(claim_epoch, job=job, above=above)
        case d.WriteMetadata(metadata):
            return partial(write_metadata, metadata=metadata, sleep=_no_sleep)
        case d.FindCheckpoint(below):
            return partial(find_checkpoint, job=job, below=below)
        case d.WithdrawCheckpoints(numbers):
            return partial(withdraw_checkpoints, job=job, checkpoints=numbers)
        case d.DeleteFiles(what):
            return partial(delete_files, job=job, what=what)
        case _:
            raise AssertionError(f"{effect} is not storage's business")


def _no_sleep(seconds: float) -> None:
    raise AssertionError("storage of a small scope does not fail")


def _sink_function(effect: d.CoordinatorEffect) -> Callable[[Calls], d.CoordinatorEvent]:
    def run(calls: Calls) -> d.CoordinatorEvent:
        sinks = Sinks({"sink": SystemCommitter("sink", calls.sink)})
        match effect:
            case d.RecoverSinks(epoch, records):
                return sinks.recover(epoch, records)
            case d.CommitTransactions(checkpoint, records):
                return sinks.commit(checkpoint, records)
            case _:
                raise AssertionError(f"{effect} is not the sinks' business")

    return run


def without_history(state: CoordinatorState) -> None:
    """Forget what no later step looks at, and in which order things came that have none."""
    state.machine.fenced = 0
    checkpoints = state.machine._checkpoints
    written = [] if checkpoints._writing is None else [checkpoints._writing[0]]
    for pending in (*checkpoints._pending.values(), *written):
        pending.acknowledged = dict(sorted(pending.acknowledged.items()))
    state.machine._finished = in_order(state.machine._finished)
    checkpoints._channels = in_order(checkpoints._channels)
    workers = state.machine._workers
    workers._members = dict(sorted(workers._members.items()))
    workers._newest = dict(sorted(workers._newest.items()))
    workers._connections = dict(sorted(workers._connections.items()))
    for member in workers._members.values():
        member.seen_ns = 0
