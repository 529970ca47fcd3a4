"""The coordinator machine: attempts, checkpoints, commits and the end of a job, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners import Forward
from headrace.engine.coordination import decisions as d
from headrace.engine.coordination import messages as m
from headrace.engine.coordination.coordinator import Coordinator, CoordinatorRules, Phase
from headrace.engine.coordination.pending import CheckpointRules
from headrace.engine.coordination.restarts import RestartRules
from headrace.engine.operators.base import SinkWriter, SourceReader
from headrace.engine.plan.execution import EdgePlan, ExecutionPlan, OperatorPlan, TaskPlan
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    SubtaskSnapshot,
    TransactionRecord,
)

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


def noted(effect: d.CoordinatorEffect) -> str | None:
    """An effect as text; notices are for people and left out."""
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
        case d.DeleteCheckpoints(what):
            return f"delete {' '.join(map(str, what.checkpoints))}"
        case d.FindCheckpoint(below):
            return f"find below {below}"
        case d.ReplaceWorker(worker):
            return f"replace {worker}"
        case d.RequestAnswered(request, checkpoint, failure):
            return f"answer {request}: {checkpoint or failure}"
        case d.JobEnded(outcome, reason, _):
            return f"{outcome.value}: {reason}"
        case d.Notice():
            return None
    return f"other {effect}"


class Driven:
    """A coordinator of two workers; worker w, incarnation i has connection 10 * i + w."""

    def __init__(
        self,
        rules: CoordinatorRules = RULES,
        *,
        restore: CheckpointMetadata | None = None,
        origin: str = "",
        assigned: Sequence[SubtaskSnapshot] = (),
    ) -> None:
        self.machine = Coordinator(
            PLAN,
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

    def start(self) -> list[str]:
        return self._noted(self.machine.start(self.now_ns))

    def step(self, event: d.CoordinatorEvent) -> list[str]:
        effects = self._noted(self.machine.step(event, self.now_ns))
        self.machine.check()
        return effects

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
        texts = [noted(effect) for effect in effects]
        return [text for text in texts if text is not None]


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


def deployed(subject: Driven, epoch: int = 1) -> None:
    """Bring a started coordinator to the point where all workers are told to start."""
    subject.step(d.EpochClaimed(epoch))
    subject.step(d.SinksRecovered(epoch))
    for worker in (0, 1):
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


# --- the beginning ----------------------------------------------------------------------------------------------------


def test_a_job_begins_with_an_epoch_then_sinks_then_workers() -> None:
    subject = Driven()
    assert subject.start() == ["claim above 0"]
    assert subject.register(0) == []
    assert subject.step(d.EpochClaimed(1)) == ["recover sinks in 1: []"]
    assert subject.register(1) == []
    assert subject.step(d.SinksRecovered(1)) == ["Deploy to 0", "Deploy to 1"]
    assert subject.said(1, m.Deployed(1)) == []
    assert subject.said(0, m.Deployed(1)) == ["Start to 0", "Start to 1"]
    assert subject.machine.phase is Phase.RUNNING


def test_workers_may_come_last() -> None:
    subject = Driven()
    subject.start()
    subject.step(d.EpochClaimed(1))
    assert subject.step(d.SinksRecovered(1)) == []
    assert subject.register(1) == []
    assert subject.register(0) == ["Deploy to 0", "Deploy to 1"]


def test_a_deploy_names_peers_checkpoint_and_the_workers_own_snapshots() -> None:
    assigned = [*snapshots(0), *snapshots(1)]
    subject = Driven(restore=a_checkpoint(7), origin="file:///other", assigned=assigned)
    subject.start()
    deployed(subject)
    first, second = (message for message in subject.messages if isinstance(message, m.Deploy))
    assert (first.epoch, first.checkpoint, first.job) == (1, 7, "job")
    assert first.origin == "file:///other"
    assert [(p.worker, p.port, p.slots) for p in first.workers] == [(0, 1000, [0]), (1, 1001, [1])]
    assert (first.restore, second.restore) == (snapshots(0), snapshots(1))


def test_what_the_restored_checkpoint_pre_committed_is_committed_again() -> None:
    subject = Driven(restore=a_checkpoint(7, "a", "b"))
    subject.start()
    assert subject.step(d.EpochClaimed(3)) == ["recover sinks in 3: ['a', 'b']"]


def test_workers_that_do_not_come_end_the_job() -> None:
    subject = Driven()
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    subject.register(0)
    assert subject.machine.next_deadline_ns() is not None
    subject.now_ns = 4_999 * MS
    subject.said(0, m.Heartbeat(0, []))
    assert subject.step(d.TimePassed()) == []
    assert subject.at(5_000 * MS)[-1] == "failed: workers 1 did not start in time"


def test_a_job_that_had_ended_when_its_checkpoint_was_taken_ends_at_once() -> None:
    over = [*snapshots(0, finished=True), *snapshots(1, finished=True)]
    subject = Driven(restore=a_checkpoint(7), assigned=over)
    subject.start()
    subject.step(d.EpochClaimed(1))
    effects = subject.step(d.SinksRecovered(1))
    assert effects[-1] == "finished: restored after the end of input"
    assert not any("Deploy" in effect for effect in effects)


def test_a_claim_that_fails_is_repeated_after_the_back_off() -> None:
    subject = Driven()
    subject.start()
    assert subject.step(d.EpochClaimFailed("storage is away")) == []
    assert subject.at(9 * MS) == []
    assert subject.at(10 * MS) == ["claim above 0"]
    for wait_ms in (20, 40):
        subject.step(d.EpochClaimFailed("storage is away"))
        assert subject.at(subject.now_ns + wait_ms * MS) == ["claim above 0"]
    assert subject.step(d.EpochClaimFailed("storage is away"))[-1] == "failed: storage is away"


def test_sinks_that_cannot_be_recovered_are_tried_again_in_a_new_epoch() -> None:
    subject = Driven()
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinkFailed(None, "away"))
    assert subject.at(10 * MS) == ["claim above 1"]
    assert subject.step(d.EpochClaimed(2)) == ["recover sinks in 2: []"]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_complete_only_after_its_metadata_and_committed_after_that() -> None:
    subject = with_checkpoint_under_way()
    assert subject.said(0, m.Acknowledge(1, 1, snapshots(0), [])) == []
    record = TransactionRecord("out", "a", {})
    effects = subject.said(1, m.Acknowledge(1, 1, snapshots(1), [record]))
    assert effects == ["write 1: ['a']"]
    effects = subject.step(d.MetadataWritten(1))
    assert effects == ["Completed to 0", "Completed to 1", "commit 1: ['a']"]
    assert subject.step(d.TransactionsCommitted(1)) == []


def test_metadata_describe_the_plan_and_every_subtask() -> None:
    subject = with_checkpoint_under_way()
    subject.now_ns = 130 * MS
    subject.acknowledge(1)
    metadata = subject.metadata[1]
    assert (metadata.job, metadata.epoch, metadata.mode) == ("job", 1, "aligned")
    assert (metadata.created_ms, metadata.duration_ns) == (100, 30 * MS)
    assert [(t.name, t.operators, t.parallelism) for t in metadata.tasks] == [
        ("numbers", ["numbers"], 2),
        ("out", ["out"], 2),
    ]
    assert [e.key for e in metadata.edges] == ["numbers->out/0"]
    assert [(s.task, s.index) for s in metadata.subtasks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_checkpoints_follow_each_other_at_the_interval_and_the_older_goes() -> None:
    subject = with_checkpoint_under_way()
    subject.checkpoint(1)
    assert subject.machine.next_deadline_ns() == 200 * MS
    assert subject.at(200 * MS) == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(2)
    assert subject.step(d.MetadataWritten(2))[-2:] == ["commit 2: []", "delete 1"]


def test_a_checkpoint_waits_for_the_one_that_is_under_way() -> None:
    subject = with_checkpoint_under_way()
    assert subject.at(250 * MS) == []
    subject.acknowledge(1)
    effects = subject.step(d.MetadataWritten(1))
    assert effects[-2:] == ["Trigger to 0", "Trigger to 1"]


def test_a_transaction_whose_commit_is_open_rides_with_the_next_checkpoint() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    subject.at(200 * MS)
    assert subject.acknowledge(2, "b") == ["write 2: ['a', 'b']"]


def test_a_requested_checkpoint_is_taken_at_once_and_answered() -> None:
    subject = running()
    assert subject.step(d.CheckpointRequested(5)) == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(1)
    assert "answer 5: 1" in subject.step(d.MetadataWritten(1))


def test_a_request_that_comes_before_the_job_runs_is_kept() -> None:
    subject = Driven()
    subject.start()
    assert subject.step(d.CheckpointRequested(5)) == []
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    subject.register(0)
    subject.register(1)
    assert subject.both(m.Deployed(1))[2:] == ["Trigger to 0", "Trigger to 1"]


def test_a_declined_checkpoint_is_cancelled_and_its_request_answered() -> None:
    subject = running()
    subject.step(d.CheckpointRequested(5))
    effects = subject.said(0, m.Decline(1, 1, "disk full"))
    assert effects == ["Cancelled to 0", "Cancelled to 1", "answer 5: disk full"]
    assert subject.machine.phase is Phase.RUNNING


def test_files_of_a_cancelled_checkpoint_go_with_the_next_that_completes() -> None:
    subject = with_checkpoint_under_way()
    subject.said(0, m.Decline(1, 1, "disk full"))
    subject.at(200 * MS)
    subject.acknowledge(2)
    assert subject.step(d.MetadataWritten(2))[-1] == "delete 1"


def test_a_checkpoint_that_takes_too_long_is_cancelled() -> None:
    subject = with_checkpoint_under_way()
    assert subject.machine.next_deadline_ns() == 600 * MS
    assert subject.at(600 * MS)[:2] == ["Cancelled to 0", "Cancelled to 1"]
    assert subject.acknowledge(1) == [], "late acknowledgements change nothing"
    assert subject.machine.fenced == 2


def test_one_failure_too_many_in_a_row_fails_the_attempt() -> None:
    subject = with_checkpoint_under_way()
    subject.said(0, m.Decline(1, 1, "disk full"))
    subject.at(200 * MS)
    effects = subject.said(0, m.Decline(1, 2, "disk full"))
    assert effects[-2:] == ["Abandon to 0", "Abandon to 1"]
    assert subject.machine.phase is Phase.RESTARTING


def test_a_completed_checkpoint_forgives_the_failures_before_it() -> None:
    subject = with_checkpoint_under_way()
    subject.said(0, m.Decline(1, 1, "disk full"))
    subject.at(200 * MS)
    subject.checkpoint(2)
    subject.at(300 * MS)
    subject.said(0, m.Decline(1, 3, "disk full"))
    assert subject.machine.phase is Phase.RUNNING


def test_metadata_that_could_not_be_written_fail_the_checkpoint_only() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    assert subject.step(d.MetadataDiscarded(1, "rejected")) == ["Cancelled to 0", "Cancelled to 1"]
    assert subject.machine.phase is Phase.RUNNING


def test_a_checkpoint_that_does_not_tile_fails_the_attempt() -> None:
    subject = with_checkpoint_under_way()
    source, sink = snapshots(0)
    behind = [ChannelPosition(0, 0, 0, 3, ended=False)]
    hole = [source, SubtaskSnapshot(1, 0, False, [], behind, [])]
    subject.said(0, m.Acknowledge(1, 1, hole, []))
    effects = subject.said(1, m.Acknowledge(1, 1, snapshots(1), []))
    assert not any(effect.startswith("write") for effect in effects)
    assert subject.machine.phase is Phase.RESTARTING
    assert "chk-1 does not tile: channel e0:0>0" in subject.notices[-1]
    assert sink.received[0].position == 5


def test_a_channel_that_nobody_reports_is_missed() -> None:
    subject = with_checkpoint_under_way()
    silent = [SubtaskSnapshot(task, 0, False, [], [], []) for task in (0, 1)]
    subject.said(0, m.Acknowledge(1, 1, silent, []))
    subject.said(1, m.Acknowledge(1, 1, snapshots(1), []))
    assert subject.machine.phase is Phase.RESTARTING
    assert "channel e0:0>0: no end reported" in subject.notices[-1]


def test_an_acknowledgement_of_an_unknown_checkpoint_is_counted_and_dropped() -> None:
    subject = running()
    assert subject.acknowledge(9) == []
    assert subject.machine.fenced == 2


# --- failures and restarts --------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_abandoned_and_the_next_starts_from_the_newest_checkpoint() -> None:
    subject = with_checkpoint_under_way()
    subject.checkpoint(1, "a")
    effects = subject.said(0, m.AttemptFailed(1, "lost a peer", "", fatal=False))
    assert effects == ["Abandon to 0", "Abandon to 1"]
    assert subject.machine.next_deadline_ns() == 110 * MS
    assert subject.at(110 * MS) == ["claim above 1"]
    assert subject.step(d.EpochClaimed(2)) == ["recover sinks in 2: []"]
    assert subject.step(d.SinksRecovered(2)) == ["Deploy to 0", "Deploy to 1"]
    deploy = subject.messages[-1]
    assert isinstance(deploy, m.Deploy)
    assert (deploy.epoch, deploy.checkpoint) == (2, 1)


def test_a_checkpoint_under_way_is_given_up_with_its_attempt() -> None:
    subject = running()
    subject.step(d.CheckpointRequested(5))
    effects = subject.said(0, m.AttemptFailed(1, "lost a peer", "", fatal=False))
    assert effects == ["answer 5: worker 0: lost a peer", "Abandon to 0", "Abandon to 1"]


def test_a_restart_waits_for_metadata_whose_fate_is_open() -> None:
    """Else a checkpoint could become visible after an older one was chosen: two histories."""
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    failed(subject)
    assert subject.at(400 * MS) == []
    assert subject.step(d.MetadataWritten(1)) == ["commit 1: ['a']"]
    assert subject.step(d.TransactionsCommitted(1)) == ["claim above 1"]
    subject.step(d.EpochClaimed(2))
    subject.step(d.SinksRecovered(2))
    deploy = subject.messages[-1]
    assert isinstance(deploy, m.Deploy)
    assert deploy.checkpoint == 1


def test_a_restart_goes_on_when_the_open_metadata_turn_out_as_discarded() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    failed(subject)
    subject.at(400 * MS)
    assert subject.step(d.MetadataDiscarded(1, "rejected"))[-1] == "claim above 1"


def test_a_commit_that_fails_is_repeated_by_the_next_attempts_recovery() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.SinkFailed(1, "the commit failed"))
    assert effects == ["Abandon to 0", "Abandon to 1"]
    assert subject.at(200 * MS) == ["claim above 1"]
    assert subject.step(d.EpochClaimed(2)) == ["recover sinks in 2: ['a']"]


def test_a_job_without_progress_is_given_up() -> None:
    subject = running()
    for epoch in (1, 2, 3):
        failed(subject)
        subject.at(subject.now_ns + 80 * MS)
        subject.step(d.EpochClaimed(epoch + 1))
        subject.step(d.SinksRecovered(epoch + 1))
        subject.both(m.Deployed(epoch + 1))
    effects = subject.said(0, m.AttemptFailed(4, "lost a peer", "", fatal=False))
    reason = "gave up after 3 restarts without progress: worker 0: lost a peer"
    assert effects[-1] == f"failed: {reason}"


def test_a_completed_checkpoint_is_progress() -> None:
    subject = running()
    for epoch in range(1, 8):
        failed(subject)
        subject.at(subject.now_ns + 80 * MS)
        subject.step(d.EpochClaimed(epoch + 1))
        subject.step(d.SinksRecovered(epoch + 1))
        subject.both(m.Deployed(epoch + 1))
        subject.at(subject.now_ns + 100 * MS)
        subject.checkpoint(epoch)
    assert subject.machine.phase is Phase.RUNNING


def test_a_fatal_failure_ends_the_job_with_its_details() -> None:
    subject = running()
    effects = subject.machine.step(
        d.MessageReceived(0, m.AttemptFailed(1, "wrong type", "Traceback", fatal=True)), 0
    )
    assert effects[-1] == d.JobEnded(d.Outcome.FAILED, "wrong type", "Traceback")


def test_what_comes_from_an_older_attempt_is_fenced() -> None:
    subject = running()
    failed(subject)
    subject.at(10 * MS)
    subject.step(d.EpochClaimed(2))
    subject.step(d.SinksRecovered(2))
    before = subject.machine.fenced
    late: list[m.ToCoordinator] = [
        m.Deployed(1),
        m.DeployFailed(1, "late", corrupt=False),
        m.Acknowledge(1, 1, [], []),
        m.Decline(1, 1, "late"),
        m.AttemptFailed(1, "late", "", fatal=True),
        m.TaskFinished(1, 0, 0),
    ]
    for message in late:
        assert subject.said(0, message) == []
    assert subject.machine.fenced - before == len(late)
    assert subject.both(m.Deployed(2)) == ["Start to 0", "Start to 1"]


# --- workers come and go ----------------------------------------------------------------------------------------------


def test_a_lost_worker_is_replaced_and_the_others_stay() -> None:
    subject = running()
    effects = subject.step(d.ConnectionLost(1, "reset"))
    assert effects == ["replace 1", "Abandon to 0"]
    subject.at(10 * MS)
    subject.step(d.EpochClaimed(2))
    assert subject.step(d.SinksRecovered(2)) == []
    assert subject.register(1, incarnation=1) == ["Deploy to 0", "Deploy to 11"]


def test_a_process_that_exits_is_lost_once() -> None:
    subject = running()
    assert subject.step(d.WorkerExited(1, 0, "signal 9")) == ["replace 1", "Abandon to 0"]
    assert subject.step(d.ConnectionLost(1, "reset")) == []
    assert subject.step(d.WorkerExited(1, 0, "signal 9")) == []


def test_a_silent_worker_is_lost() -> None:
    subject = running()
    subject.now_ns = 600 * MS
    subject.said(0, m.Heartbeat(1, []))
    assert subject.at(1_000 * MS)[:1] != ["close 1"]
    effects = subject.at(1_000 * MS + 1)
    assert effects[:2] == ["close 1", "replace 1"]
    assert "close 0" not in effects


def test_the_machine_asks_to_be_woken_for_silence() -> None:
    subject = running(replace(RULES, checkpoints=replace(RULES.checkpoints, interval_ns=None)))
    assert subject.machine.next_deadline_ns() == 1_000 * MS + 1


def test_every_message_is_a_sign_of_life_whatever_its_epoch() -> None:
    subject = running(replace(RULES, checkpoints=replace(RULES.checkpoints, interval_ns=None)))
    subject.now_ns = 900 * MS
    subject.said(0, m.Heartbeat(0, []))
    subject.said(1, m.TaskFinished(0, 0, 0))
    assert subject.machine.next_deadline_ns() == 1_900 * MS + 1


def test_a_newer_incarnation_takes_the_place_of_the_older() -> None:
    subject = running()
    effects = subject.register(1, incarnation=1)
    assert effects == ["Shutdown to 1", "close 1", "Abandon to 0"]
    assert subject.said(1, m.AttemptFailed(1, "zombie", "", fatal=True)) == []
    assert subject.machine.fenced == 1
    subject.at(10 * MS)
    subject.step(d.EpochClaimed(2))
    assert subject.step(d.SinksRecovered(2)) == ["Deploy to 0", "Deploy to 11"]


@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_zombie_that_registers_is_sent_away(incarnation: int) -> None:
    subject = running()
    subject.register(1, incarnation=1)
    message = m.Register(1, incarnation, "host", 1, 1)
    assert subject.said(77, message) == ["Shutdown to 77", "close 77"]
    assert subject.said(77, m.Heartbeat(1, [])) == []


def test_a_worker_that_dies_before_it_registers_is_replaced_a_few_times() -> None:
    subject = Driven()
    subject.start()
    for incarnation in range(3):
        assert subject.step(d.WorkerExited(1, incarnation, "exit code 1")) == ["replace 1"]
    effects = subject.step(d.WorkerExited(1, 3, "exit code 1"))
    assert effects[-1] == "failed: worker 1 ended before it registered: exit code 1"


def test_a_launcher_that_gives_up_ends_the_job() -> None:
    subject = running()
    effects = subject.step(d.LauncherFailed("the cluster is gone"))
    assert effects[-1] == "failed: the cluster is gone"


# --- damaged checkpoints ----------------------------------------------------------------------------------------------


def with_a_damaged_checkpoint() -> Driven:
    subject = Driven(restore=a_checkpoint(7))
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    subject.register(0)
    subject.register(1)
    effects = subject.said(0, m.DeployFailed(1, "checksum", corrupt=True))
    assert effects == ["Abandon to 0", "Abandon to 1", "find below 7"]
    assert subject.said(1, m.DeployFailed(1, "checksum", corrupt=True)) == [], "once is enough"
    return subject


def test_a_damaged_checkpoint_is_replaced_by_an_older_one() -> None:
    subject = with_a_damaged_checkpoint()
    assert any(notice.startswith("warning: chk-7") for notice in subject.notices)
    assert subject.at(10 * MS) == [], "the search is waited for"
    assert subject.step(d.CheckpointFound(a_checkpoint(5, "a"))) == ["claim above 1"]
    assert subject.step(d.EpochClaimed(2)) == ["recover sinks in 2: ['a']"]
    subject.step(d.SinksRecovered(2))
    deploy = subject.messages[-1]
    assert isinstance(deploy, m.Deploy)
    assert deploy.checkpoint == 5


def test_without_an_older_checkpoint_the_job_fails_instead_of_starting_afresh() -> None:
    subject = with_a_damaged_checkpoint()
    effects = subject.step(d.CheckpointFound(None))
    assert effects[-1].startswith("failed: chk-7 cannot be restored, and there is no older one")
    assert subject.machine.phase is Phase.ENDED


def test_an_operator_that_cannot_be_opened_ends_the_job() -> None:
    subject = Driven()
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    subject.register(0)
    subject.register(1)
    effects = subject.said(0, m.DeployFailed(1, "no such module", corrupt=False))
    assert effects[-1] == "failed: no such module"


# --- the end ----------------------------------------------------------------------------------------------------------


def test_when_all_have_finished_a_last_checkpoint_is_committed_and_the_job_ends() -> None:
    subject = running()
    assert finished(subject) == ["Trigger to 0", "Trigger to 1"]
    assert subject.acknowledge(1, "a", finished=True) == ["write 1: ['a']"]
    effects = subject.step(d.MetadataWritten(1))
    assert effects == [
        "Completed to 0",
        "Completed to 1",
        "commit 1: ['a']",
        "Abandon to 0",
        "Abandon to 1",
    ]
    assert subject.machine.phase is Phase.CLOSING, "the commit is waited for"
    assert subject.step(d.TransactionsCommitted(1)) == [
        "recover sinks in 1: []",
        "Shutdown to 0",
        "Shutdown to 1",
        "finished: chk-1 covers everything",
    ]
    assert subject.at(10**12) == []


def test_the_last_checkpoint_waits_for_the_one_under_way() -> None:
    subject = with_checkpoint_under_way()
    assert finished(subject) == []
    subject.acknowledge(1)
    assert subject.step(d.MetadataWritten(1))[-2:] == ["Trigger to 0", "Trigger to 1"]


def test_a_last_checkpoint_that_fails_is_taken_again() -> None:
    subject = running()
    finished(subject)
    effects = subject.said(0, m.Decline(1, 1, "disk full"))
    assert effects[-2:] == ["Trigger to 0", "Trigger to 1"]


def test_a_last_commit_that_fails_fails_the_job() -> None:
    subject = running()
    finished(subject)
    subject.acknowledge(1, "a", finished=True)
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.SinkFailed(1, "the file is gone"))
    assert effects[-1] == "failed: the file is gone"
    assert not any(effect.startswith("recover") for effect in effects), "'a' must not be aborted"


def test_an_attempt_that_fails_during_the_last_checkpoint_ends_after_the_restart() -> None:
    over = [*snapshots(0, finished=True), *snapshots(1, finished=True)]
    subject = Driven(assigned=over)
    subject.start()
    deployed(subject)
    finished(subject)
    subject.acknowledge(1, "a", finished=True)
    failed(subject)
    subject.step(d.MetadataWritten(1))
    subject.step(d.TransactionsCommitted(1))
    subject.at(10 * MS)
    subject.step(d.EpochClaimed(2))
    effects = subject.step(d.SinksRecovered(2))
    assert effects[-1] == "finished: restored after the end of input"


def test_a_stop_takes_a_last_checkpoint_and_commits_it() -> None:
    subject = running()
    effects = subject.step(d.StopRequested(d.StopKind.WITH_CHECKPOINT))
    assert effects == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.TransactionsCommitted(1))
    assert effects[-1] == "stopped: chk-1 covers everything"


def test_a_cancelled_job_ends_at_once_and_aborts_what_is_open() -> None:
    subject = running()
    subject.step(d.CheckpointRequested(5))
    effects = subject.step(d.StopRequested(d.StopKind.NOW))
    assert effects == [
        "answer 5: stopped at once",
        "Abandon to 0",
        "Abandon to 1",
        "recover sinks in 1: []",
        "Shutdown to 0",
        "Shutdown to 1",
        "stopped: stopped at once",
    ]


def test_a_cancelled_job_waits_for_open_metadata_and_commits_what_became_complete() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    effects = subject.step(d.StopRequested(d.StopKind.NOW))
    assert effects == ["Abandon to 0", "Abandon to 1"]
    assert subject.step(d.MetadataWritten(1)) == ["commit 1: ['a']"]
    assert subject.step(d.TransactionsCommitted(1))[-1] == "stopped: stopped at once"


def test_a_superseded_coordinator_stops_without_touching_the_sinks() -> None:
    """What is open in the sinks belongs to the one that runs now."""
    subject = running()
    failed(subject)
    subject.at(10 * MS)
    effects = subject.step(d.Superseded("another coordinator runs"))
    assert effects[-1] == "failed: another coordinator runs"
    assert not any(effect.startswith("recover") for effect in effects)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_coordinator_superseded_while_it_writes_touches_no_sink(cancelled: bool) -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    if cancelled:
        subject.step(d.StopRequested(d.StopKind.NOW))
    effects = subject.step(d.Superseded("another coordinator runs"))
    effects += subject.step(d.MetadataDiscarded(1, "another coordinator runs"))
    assert effects[-1].startswith("stopped" if cancelled else "failed")
    assert not any(effect.startswith("recover") for effect in effects)


def test_a_job_cancelled_before_it_owns_an_epoch_touches_no_sink() -> None:
    """Another coordinator of this job may be running."""
    subject = Driven()
    subject.start()
    effects = subject.step(d.StopRequested(d.StopKind.NOW))
    assert effects == ["stopped: stopped at once"]


def test_requests_that_wait_are_answered_when_the_job_ends() -> None:
    subject = with_checkpoint_under_way()
    subject.step(d.CheckpointRequested(5))
    subject.step(d.CheckpointRequested(6))
    effects = subject.step(d.LauncherFailed("gone"))
    assert effects[:4] == ["Abandon to 0", "Abandon to 1", "answer 5: gone", "answer 6: gone"]


def test_nothing_happens_after_the_end_but_that_late_workers_are_sent_home() -> None:
    subject = running()
    subject.step(d.StopRequested(d.StopKind.NOW))
    assert subject.step(d.MetadataWritten(1)) == []
    assert subject.step(d.TimePassed()) == []
    assert subject.register(0, incarnation=5) == ["Shutdown to 50"]


def test_the_state_can_be_read_as_text() -> None:
    subject = with_checkpoint_under_way()
    assert subject.machine.describe() == (
        "coordinator running epoch=1 pending=[1] finished=0 next=2 missing=[]"
        " complete=[] uncommitted=0"
    )
