"""A coordinator of two workers driven by hand: its effects as text, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.forward import Forward
from headrace.engine.contract import messages as m
from headrace.engine.contract.execution import EdgePlan, ExecutionPlan, OperatorPlan, TaskPlan
from headrace.engine.contract.operators import SinkWriter, SourceReader
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.coordinator import Coordinator
from headrace.engine.coordinator.rules import CheckpointRules, CoordinatorRules, Phase, RestartRules
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    SubtaskSnapshot,
    TransactionRecord,
)
from headrace.recovery.registry import Deletable

MS = 1_000_000
RULES = CoordinatorRules(
    mode=CheckpointMode.ALIGNED,
    checkpoints=CheckpointRules(
        interval_ns=100 * MS,
        min_pause_ns=0,
        timeout_ns=500 * MS,
        tolerable_failures=1,
        retain=1,
        concurrent=1,
    ),
    restarts=RestartRules(attempts_max=3, backoff_ns=10 * MS, backoff_max_ns=80 * MS),
    heartbeat_timeout_ns=1_000 * MS,
    register_timeout_ns=5_000 * MS,
)


def never_source() -> SourceReader:
    raise AssertionError("nothing is opened here")


def never_sink() -> SinkWriter:
    raise AssertionError("nothing is opened here")


PLAN = ExecutionPlan(
    "job",
    (
        TaskPlan(0, "numbers", (OperatorPlan("numbers", source=never_source),), 2, (), (0,)),
        TaskPlan(1, "out", (OperatorPlan("out", sink=never_sink),), 2, (0,), ()),
    ),
    (EdgePlan(0, "numbers->out/0", 0, 1, 0, Forward(), pa.schema([("x", pa.int64())])),),
    128,
)


def noted(effect: d.PartEffect) -> str | None:
    """An effect or finding as text; notices are for people and left out."""
    match effect:
        case d.SendMessage(connection, message):
            return f"{type(message).__name__} to {connection}"
        case d.CloseConnection(connection):
            return f"close {connection}"
        case d.ClaimEpoch(above):
            return f"claim above {above}"
        case d.RecoverSinks(epoch, transactions):
            return f"recover sinks in {epoch}: {[t.id for t in transactions]}"
        case d.WriteMetadata(metadata):
            return f"write {metadata.checkpoint}: {[t.id for t in metadata.transactions]}"
        case d.CommitTransactions(checkpoint, transactions):
            return f"commit {checkpoint}: {[t.id for t in transactions]}"
        case d.WithdrawCheckpoints(checkpoints, patient):
            return f"withdraw {' '.join(map(str, checkpoints))}{' patiently' * patient}"
        case d.DeleteFiles(what, patient):
            things = (*what.checkpoints, *what.files, *(f"{n} of {u}" for n, u in what.savepoints))
            return f"delete {' '.join(map(str, things))}{' patiently' * patient}"
        case d.FindCheckpoint(below):
            return f"find below {below}"
        case d.ReplaceWorker(worker):
            return f"replace {worker}"
        case d.RequestAnswered(request, checkpoint, failure):
            return f"answer {request}: {checkpoint or failure}"
        case d.JobEnded(outcome, reason, _):
            return f"{outcome.value}: {reason}"
        case d.AttemptBroken(reason):
            return f"attempt broken: {reason}"
        case d.JobBroken(reason):
            return f"job broken: {reason}"
        case d.LastCheckpointCompleted(checkpoint, savepoint, whole):
            return f"last {checkpoint}{' saved' * savepoint}{' whole' * whole}"
        case d.LastSavepointFailed(reason):
            return f"last savepoint failed: {reason}"
        case d.Notice():
            return None
    return f"other {effect}"


def texts(effects: Sequence[d.PartEffect]) -> list[str]:
    """All effects as text, without notices."""
    return [text for text in map(noted, effects) if text is not None]


class Driven:
    """A coordinator of two workers; worker w, incarnation i has connection 10 * i + w."""

    def __init__(
        self,
        rules: CoordinatorRules = RULES,
        *,
        restore: CheckpointMetadata | None = None,
        origin: str = "",
        assigned: Sequence[SubtaskSnapshot] = (),
        plan: ExecutionPlan = PLAN,
    ) -> None:
        self.machine = Coordinator(
            plan,
            [[0], [1]],
            rules,
            restore=restore,
            origin=origin,
            checkpoint_next=1 if restore is None else restore.checkpoint + 1,
            assign=lambda metadata: assigned,
        )
        self.now_ns = 0
        self.metadata: dict[int, CheckpointMetadata] = {}
        self.messages: list[m.ToWorker] = []
        self.notices: list[str] = []
        #: Storage answers deletions at once; the checkpoints that it refuses to withdraw, and those
        #: whose files it refuses to delete.
        self.answers_deletions = True
        self.not_withdrawn: set[int] = set()
        self.not_deleted: set[int] = set()
        #: Sinks answer at once when a job that is over asks for what dead attempts have left.
        self.answers_sweep = True

    def start(self) -> list[str]:
        return self._noted(self.machine.start(self.now_ns))

    def step(self, event: d.CoordinatorEvent) -> list[str]:
        done = self.machine.step(event, self.now_ns)
        effects = self._noted(done)
        self.machine.check()
        for effect in done:
            effects += self._swept(effect)
            effects += self._deleted(effect) if self.answers_deletions else []
        return effects

    def _swept(self, effect: d.CoordinatorEffect) -> list[str]:
        match effect:
            case d.RecoverSinks(epoch, _, None) if self.answers_sweep:
                return self.step(d.SinksRecovered(epoch))
            case _:
                return []

    def _deleted(self, effect: d.CoordinatorEffect) -> list[str]:
        match effect:
            case d.WithdrawCheckpoints(asked):
                gone = tuple(n for n in asked if n not in self.not_withdrawn)
                return self.step(d.CheckpointsWithdrawn(asked, gone))
            case d.DeleteFiles(what):
                left = tuple(n for n in what.checkpoints if n in self.not_deleted)
                return self.step(d.FilesDeleted(Deletable(left)))
            case _:
                return []

    def register(self, worker: int, incarnation: int = 0) -> list[str]:
        message = m.Register(worker, incarnation, "host", 1000 + worker, 1)
        return self.step(d.MessageReceived(10 * incarnation + worker, message))

    def said(self, connection: int, message: m.ToCoordinator) -> list[str]:
        return self.step(d.MessageReceived(connection, message))

    def both(self, message: m.ToCoordinator) -> list[str]:
        return self.said(0, message) + self.said(1, message)

    def at(self, now_ns: int) -> list[str]:
        """Time passes, machine and heartbeats included, as far as it wants to be told."""
        self.now_ns = now_ns
        return self.step(d.TimePassed())

    def acknowledge(self, checkpoint: int, *transactions: str, finished: bool = False) -> list[str]:
        """Both workers acknowledge; worker 1 brings the transactions."""
        epoch = self.machine.epoch
        records = [TransactionRecord("out", id, {}) for id in transactions]
        effects = self.said(0, m.Acknowledge(epoch, checkpoint, snapshots(0, finished), []))
        effects += self.said(1, m.Acknowledge(epoch, checkpoint, snapshots(1, finished), records))
        return effects

    def checkpoint(self, number: int, *transactions: str) -> None:
        """A checkpoint from its trigger, which has been given, to its commit."""
        self.acknowledge(number, *transactions)
        self.step(d.MetadataWritten(number))
        self.step(d.TransactionsCommitted(number))

    def _noted(self, effects: list[d.CoordinatorEffect]) -> list[str]:
        for effect in effects:
            match effect:
                case d.SendMessage(_, message):
                    self.messages.append(message)
                case d.WriteMetadata(metadata):
                    self.metadata[metadata.checkpoint] = metadata
                case d.Notice(kind, words):
                    self.notices.append(f"{kind.value}: {words}")
        return texts(effects)


def snapshots(slot: int, finished: bool = False) -> list[SubtaskSnapshot]:
    """What the worker with this slot reports: a source and a sink that tile their channel."""
    end = [ChannelPosition(0, slot, slot, 5, ended=finished)]
    return [
        SubtaskSnapshot(0, slot, finished, [], [], end),
        SubtaskSnapshot(1, slot, finished, [], end, []),
    ]


def a_checkpoint(number: int, *transactions: str) -> CheckpointMetadata:
    return CheckpointMetadata(
        job="job",
        checkpoint=number,
        epoch=1,
        mode="aligned",
        savepoint=False,
        created_ms=0,
        duration_ns=0,
        max_parallelism=128,
        tasks=[],
        edges=[],
        subtasks=[],
        transactions=[TransactionRecord("out", id, {}) for id in transactions],
    )


def deployed(subject: Driven, epoch: int = 1, *, register: bool = True) -> None:
    """Bring a started coordinator to the point where all workers are told to start."""
    subject.step(d.EpochClaimed(epoch))
    subject.step(d.SinksRecovered(epoch))
    for worker in (0, 1) if register else ():
        subject.register(worker)
    assert subject.both(m.Deployed(epoch)) == ["Start to 0", "Start to 1"]


def running(rules: CoordinatorRules = RULES) -> Driven:
    subject = Driven(rules)
    subject.start()
    deployed(subject)
    return subject


def with_checkpoint_under_way(rules: CoordinatorRules = RULES) -> Driven:
    subject = running(rules)
    assert subject.at(100 * MS) == ["Trigger to 0", "Trigger to 1"]
    return subject


def failed(subject: Driven) -> None:
    """The attempt fails on worker 0."""
    subject.said(0, m.AttemptFailed(subject.machine.epoch, "lost a peer", "", fatal=False))
    assert subject.machine.phase is Phase.RESTARTING


def finished(subject: Driven) -> list[str]:
    effects: list[str] = []
    for worker in (0, 1):
        for task in (0, 1):
            effects += subject.said(worker, m.TaskFinished(subject.machine.epoch, task, worker))
    return effects
