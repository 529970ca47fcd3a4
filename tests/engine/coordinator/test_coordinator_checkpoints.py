"""The coordinator machine: checkpoints, commits and savepoints, event by event."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.rules import CoordinatorRules, Phase
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay_ledger import ReplayCount
from headrace.recovery.metadata import (
    ChannelPosition,
    EdgeInfo,
    SubtaskSnapshot,
    TaskInfo,
    TransactionRecord,
)
from headrace.recovery.replays import SubtaskReplay

from .driven_coordinator import (
    MS,
    RULES,
    Driven,
    a_checkpoint,
    deployed,
    failed,
    finished,
    running,
    snapshots,
    with_checkpoint_under_way,
)

# --- checkpoints ----------------------------------------------------------------------------------


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
    assert subject.step(d.MetadataWritten(2))[-3:] == ["commit 2: []", "withdraw 1", "delete 1"]


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
    assert subject.step(d.MetadataWritten(2))[-2:] == ["withdraw 1", "delete 1"]


def test_the_first_checkpoint_of_an_attempt_is_deleted_twice() -> None:
    """A worker of the attempt before that is cut off logs for its number, even after it went."""
    subject = with_checkpoint_under_way()
    subject.checkpoint(1)
    failed(subject)
    subject.at(200 * MS)
    subject.step(d.EpochClaimed(2))
    subject.step(d.SinksRecovered(2))
    subject.both(m.Deployed(2))
    deletions = []
    for number in (2, 3, 4, 5):
        subject.at(number * 200 * MS)
        subject.acknowledge(number)
        deletions.append(subject.step(d.MetadataWritten(number))[-1])
        subject.step(d.TransactionsCommitted(number))
    assert deletions == ["delete 1", "delete 1 2", "delete 2 3", "delete 4"]


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


# --- the end --------------------------------------------------------------------------------------


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


def retried(subject: Driven) -> list[str]:
    """What happens at the next deadline, a heartbeat's aside."""
    for worker in range(2):
        subject.said(worker, m.Heartbeat(1, []))
    deadline_ns = subject.machine.next_deadline_ns()
    assert deadline_ns is not None
    return subject.at(deadline_ns)


def test_a_last_commit_that_fails_is_tried_again_and_fails_the_job_in_the_end() -> None:
    subject = running()
    finished(subject)
    subject.acknowledge(1, "a", finished=True)
    subject.step(d.MetadataWritten(1))
    said: list[str] = []
    for _ in range(10):
        said = subject.step(d.SinkFailed(1, "the file is gone"))
        if said:
            break
        assert retried(subject) == ["commit 1: ['a']"]
    assert said[-1] == (
        "failed: the file is gone (gave up after 4 tries; the next run of the job goes on)"
    )
    assert not any(effect.startswith("recover") for effect in said), "'a' must not be aborted"


def test_a_last_commit_that_works_the_second_time_ends_the_job_well() -> None:
    subject = running()
    finished(subject)
    subject.acknowledge(1, "a", finished=True)
    subject.step(d.MetadataWritten(1))
    subject.step(d.SinkFailed(1, "busy"))
    retried(subject)
    assert subject.step(d.TransactionsCommitted(1))[-1].startswith("finished")


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


def test_the_state_can_be_read_as_text() -> None:
    subject = with_checkpoint_under_way()
    text = subject.machine.describe()
    assert text.startswith("coordinator running epoch=1")
    for part in ("pending=[1]", "next=2", "finished=0", "missing=[]", "complete=[]"):
        assert part in text


# --- waves of a replay ----------------------------------------------------------------------------


def left(*waves: int) -> list[SubtaskSnapshot]:
    """The parts of worker 0, whose sink has records of these waves left to replay."""
    source, sink = snapshots(0)
    buffer = BufferHandle("chk-7/a", 8, 1, "0" * 16, 1, 0, 1)
    handles = [
        ChannelStateHandle(0, 0, 0, "replay", 0, [buffer], ended=False, wave=wave) for wave in waves
    ]
    return [source, replace(sink, inflight=handles)]


def replaying(*waves: int, rules: CoordinatorRules = RULES) -> Driven:
    """A coordinator whose attempt replays these waves, and has looked at the first."""
    dealt = [*left(*waves), *snapshots(1)]
    restored = replace(
        a_checkpoint(7),
        tasks=[TaskInfo(name, [name], [], 2) for name in ("numbers", "out")],
        edges=[EdgeInfo("numbers->out/0", 0, 1, "forward")],
        subtasks=dealt,
    )
    subject = Driven(rules, restore=restored, assigned=dealt)
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    for worker in (0, 1):
        subject.register(worker)
    started = subject.both(m.Deployed(1))
    assert started == ["Start to 0", "Start to 1", "Trigger to 0", "Trigger to 1"]
    return subject


def replayed(subject: Driven, *waves: int) -> list[SubtaskReplay]:
    """Worker 0's account: every restored buffer of other waves is worked on."""
    deploy = subject.messages[0]
    assert isinstance(deploy, m.Deploy)
    done = sum(len(snapshot.inflight) for snapshot in deploy.restore) - len(waves)
    return [SubtaskReplay(1, 0, [ReplayCount(0, done, 0, done, done, 0)])]


def looked(subject: Driven, checkpoint: int, *waves: int) -> list[str]:
    """The look shows records of these waves; the effects of the complete checkpoint."""
    subject.said(0, m.Acknowledge(1, checkpoint, left(*waves), [], replayed(subject, *waves)))
    subject.said(1, m.Acknowledge(1, checkpoint, snapshots(1), []))
    effects = subject.step(d.MetadataWritten(checkpoint))
    subject.step(d.TransactionsCommitted(checkpoint))
    return [effect for effect in effects if "Wave" in effect]


def test_an_attempt_begins_with_the_first_wave_and_looks_whether_it_is_over() -> None:
    subject = replaying(2, 1)
    deploy, trigger = subject.messages[0], subject.messages[-1]
    assert isinstance(deploy, m.Deploy)
    assert isinstance(trigger, m.Trigger)
    assert (deploy.wave, trigger.mode) == (2, "unaligned")


def test_the_next_wave_begins_when_a_checkpoint_has_nothing_of_the_wave_before() -> None:
    subject = replaying(3, 1)
    assert looked(subject, 8, 3, 1) == []
    assert looked(subject, 9, 1) == ["BeginWave to 0", "BeginWave to 1"]
    assert subject.messages[-1] == m.Trigger(1, 10, "unaligned", subject.now_ns)
    assert m.BeginWave(1, 1) in subject.messages
    looked(subject, 10)
    assert m.BeginWave(1, 0) in subject.messages


def test_looks_leave_as_much_time_to_the_work_as_they_take() -> None:
    subject = replaying(1)
    subject.now_ns = 30 * MS
    looked(subject, 8, 1)
    assert subject.machine.next_deadline_ns() == 60 * MS


def test_a_checkpoint_amid_the_waves_notes_the_wave_of_records_in_channels() -> None:
    subject = replaying(2)
    buffer = BufferHandle("chk-8/a", 8, 1, "0" * 16, 1, 0, 1)
    sent = ChannelStateHandle(0, 0, 0, "output", 5, [buffer], ended=False)
    source, sink = left(1)
    more = replace(source, inflight=[sent], sent=[replace(source.sent[0], position=6)])
    subject.said(0, m.Acknowledge(1, 8, [more, sink], [], replayed(subject, 1)))
    subject.said(1, m.Acknowledge(1, 8, snapshots(1), []))
    found = [h for s in subject.metadata[8].subtasks for h in s.inflight]
    assert [(h.side, h.wave) for h in found] == [("output", 2), ("replay", 1)]
    subject.step(d.MetadataWritten(8))
    assert subject.messages[-1] == m.Trigger(1, 9, "unaligned", 0), "the wave is not over"


def test_an_aligned_stop_waits_for_the_waves_and_an_unaligned_one_does_not() -> None:
    subject = replaying(1)
    assert subject.step(d.StopRequested(d.StopKind.WITH_CHECKPOINT)) == []
    looked(subject, 8)
    assert subject.messages[-1] == m.Trigger(1, 9, "aligned", 0)
    subject = replaying(1)
    unaligned = d.StopRequested(d.StopKind.WITH_CHECKPOINT, mode=CheckpointMode.UNALIGNED)
    subject.step(unaligned)
    assert subject.messages[-1] == m.Trigger(1, 9, "unaligned", 0)


def test_a_drain_waits_for_the_waves() -> None:
    subject = replaying(1)
    effects = subject.step(d.StopRequested(d.StopKind.DRAIN))
    assert effects[-4:] == ["Drain to 0", "Drain to 1", "Trigger to 0", "Trigger to 1"]
    assert looked(subject, 9) == ["BeginWave to 0", "BeginWave to 1"]
