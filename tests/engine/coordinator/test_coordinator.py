"""The coordinator machine: attempts, workers, and what is restored, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.rules import Phase

from .driven_coordinator import (
    MS,
    RULES,
    Driven,
    a_checkpoint,
    deployed,
    failed,
    running,
    snapshots,
    with_checkpoint_under_way,
)

# --- the beginning --------------------------------------------------------------------------------


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


def test_an_attempt_says_what_it_starts_from() -> None:
    fresh = running()
    assert fresh.notices == ["running: attempt 1 runs from the beginning"]
    subject = Driven(restore=a_checkpoint(7), origin="file:///other")
    subject.start()
    deployed(subject)
    subject.at(100 * MS)
    subject.checkpoint(8)
    failed(subject)
    subject.at(110 * MS)
    deployed(subject, epoch=2, register=False)
    assert [notice for notice in subject.notices if notice.startswith("running")] == [
        "running: attempt 1 runs from chk-7",
        "running: attempt 2 runs from chk-8",
    ]


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


def test_sinks_that_cannot_be_recovered_are_tried_again_in_place_with_a_notice_each() -> None:
    subject = Driven(restore=a_checkpoint(7, "a"))
    subject.start()
    subject.step(d.EpochClaimed(1))
    for wait_ms in (10, 20, 40):
        assert subject.step(d.SinkFailed(None, "away")) == []
        assert subject.notices[-1] == f"warning: away; trying again in {wait_ms / 1000:.3g} s"
        assert subject.at(subject.now_ns + (wait_ms - 1) * MS) == []
        assert subject.at(subject.now_ns + MS) == ["recover sinks in 1: ['a']"]
    assert subject.step(d.SinkFailed(None, "away"))[-1] == (
        "failed: away (gave up after 4 tries; the next run of the job goes on)"
    )


def test_a_lost_commit_fails_the_job_at_once() -> None:
    subject = Driven(restore=a_checkpoint(7, "a"))
    subject.start()
    subject.step(d.EpochClaimed(1))
    assert subject.step(d.SinkFailed(None, "it is gone", lost=True))[-1] == "failed: it is gone"
    assert not any("recover" in text for text in subject.at(10**12)), "'a' must not be aborted"


# --- failures and restarts ------------------------------------------------------------------------


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


def test_a_commit_that_fails_is_repeated_in_place_for_as_long_as_the_attempt_runs() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    for wait_ms in (10, 20, 40, 80, 80):
        assert subject.step(d.SinkFailed(1, "busy")) == []
        assert subject.notices[-1] == f"warning: busy; trying again in {wait_ms / 1000:.3g} s"
        assert "commit 1: ['a']" in waited(subject, wait_ms * MS)
    assert subject.machine.phase is Phase.RUNNING
    subject.step(d.TransactionsCommitted(1))
    assert subject.machine.epoch == 1


def waited(subject: Driven, time_ns: int) -> list[str]:
    """What happens as time passes; both workers say that they live."""
    subject.now_ns += time_ns
    return subject.both(m.Heartbeat(1, [])) + subject.step(d.TimePassed())


def test_a_commit_that_failed_is_left_to_the_next_checkpoint_that_names_it() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    subject.at(200 * MS)
    subject.acknowledge(2, "b")
    subject.step(d.SinkFailed(1, "busy"))
    assert "commit 2: ['a', 'b']" in subject.step(d.MetadataWritten(2))
    assert not any("commit" in text for text in subject.at(210 * MS)), "once is enough"


def test_a_commit_that_failed_before_its_attempt_did_is_repeated_by_the_recovery() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    subject.step(d.SinkFailed(1, "busy"))
    failed(subject)
    assert subject.at(200 * MS) == ["claim above 1"]
    assert subject.step(d.EpochClaimed(2)) == ["recover sinks in 2: ['a']"]


def test_a_commit_that_is_lost_while_the_attempt_runs_fails_the_job() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.SinkFailed(1, "the file is gone", lost=True))
    assert effects[-1] == "failed: the file is gone"


def test_a_job_without_progress_is_given_up() -> None:
    subject = running()
    for epoch in (1, 2, 3):
        failed(subject)
        subject.at(subject.now_ns + 80 * MS)
        subject.step(d.EpochClaimed(epoch + 1))
        subject.step(d.SinksRecovered(epoch + 1))
        subject.both(m.Deployed(epoch + 1))
    effects = subject.said(0, m.AttemptFailed(4, "lost a peer", "", fatal=False))
    assert effects[-1].startswith("failed: ")
    assert "gave up after 3 restarts without progress" in effects[-1]
    assert "worker 0: lost a peer" in effects[-1]


def test_a_program_that_fails_the_same_way_thrice_is_given_up_whoever_runs_it() -> None:
    subject = running()
    for epoch, worker in ((1, 0), (2, 1), (3, 0)):
        effects = subject.said(worker, m.AttemptFailed(epoch, "boom", "Traceback", fatal=False))
        subject.at(subject.now_ns + 80 * MS)
        subject.step(d.EpochClaimed(epoch + 1))
        subject.step(d.SinksRecovered(epoch + 1))
        subject.both(m.Deployed(epoch + 1))
    assert "gave up after 2 restarts without progress" in effects[-1]


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
        m.DeployFailed(1, "late"),
        m.Acknowledge(1, 1, [], []),
        m.Decline(1, 1, "late"),
        m.AttemptFailed(1, "late", "", fatal=True),
        m.TaskFinished(1, 0, 0),
    ]
    for message in late:
        assert subject.said(0, message) == []
    assert subject.machine.fenced - before == len(late)
    assert subject.both(m.Deployed(2)) == ["Start to 0", "Start to 1"]


# --- workers come and go --------------------------------------------------------------------------


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


def test_a_silent_worker_whose_process_lives_is_kept_and_named() -> None:
    subject = running()
    subject.now_ns = 700 * MS
    subject.said(0, m.Heartbeat(1, []))
    # Of the worker's companion, over a connection that is nobody's.
    subject.said(77, m.Pulse(1, 0, [m.Call(1, 1, 0)]))
    assert subject.notices[-1] == "warning: worker 1 has not answered for 0 s: out holds the GIL"
    assert "close 1" not in subject.at(1_500 * MS)
    assert subject.step(d.ConnectionLost(77, "reset")) == []
    assert "close 1" in subject.at(1_700 * MS + 1)


def test_a_driver_that_slept_does_not_take_its_sleep_for_the_workers_silence() -> None:
    subject = running()
    subject.now_ns = 5_000 * MS
    subject.step(d.DriverSlept(4_000 * MS))
    assert "close 0" not in subject.at(5_000 * MS)
    # A short sleep excuses nobody.
    subject.now_ns = 6_000 * MS + 1
    subject.step(d.DriverSlept(249 * MS))
    assert {"close 0", "close 1"} <= set(subject.at(6_000 * MS + 1))


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


# --- damaged checkpoints --------------------------------------------------------------------------


def with_a_damaged_checkpoint() -> Driven:
    subject = Driven(restore=a_checkpoint(7))
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    subject.register(0)
    subject.register(1)
    effects = subject.said(0, m.DeployFailed(1, "checksum"))
    assert effects == ["find below 7", "Abandon to 0", "Abandon to 1"]
    assert subject.said(1, m.DeployFailed(1, "checksum")) == [], "once is enough"
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


def test_damage_in_what_is_replayed_is_not_blamed_on_a_newer_checkpoint() -> None:
    subject = Driven(restore=a_checkpoint(7), origin="file:///other")
    subject.start()
    deployed(subject)
    subject.at(100 * MS)
    subject.checkpoint(8)
    effects = subject.said(0, m.DeployFailed(1, "no such file"))
    assert effects == ["Abandon to 0", "Abandon to 1"], "nothing older is looked for"
    subject.at(110 * MS)
    subject.step(d.EpochClaimed(2))
    subject.step(d.SinksRecovered(2))
    deploy = subject.messages[-1]
    assert isinstance(deploy, m.Deploy)
    assert (deploy.checkpoint, deploy.origin) == (8, "")


def test_a_damaged_checkpoint_of_another_directory_has_no_older_one_here() -> None:
    subject = Driven(restore=a_checkpoint(7), origin="file:///other")
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    for worker in (0, 1):
        subject.register(worker)
    effects = subject.said(0, m.DeployFailed(1, "checksum"))
    assert effects[-1] == "failed: chk-7 in file:///other cannot be restored: checksum"


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
    effects = subject.said(0, m.AttemptFailed(1, "no such module", "", fatal=True))
    assert effects[-1] == "failed: no such module"


def test_an_operator_that_cannot_be_opened_this_time_is_opened_again() -> None:
    subject = Driven()
    subject.start()
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    subject.register(0)
    subject.register(1)
    effects = subject.said(0, m.AttemptFailed(1, "no licence", "Traceback", fatal=False))
    assert effects == ["Abandon to 0", "Abandon to 1"]
    assert subject.at(10 * MS) == ["claim above 1"]
