"""The stop that a user asks for: the first counts, each is answered, a late one overtakes."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.rules import Phase
from headrace.engine.coordinator.stop import Stop

from .driven_coordinator import (
    MS,
    RULES,
    Driven,
    failed,
    finished,
    running,
    with_checkpoint_under_way,
)


def test_a_stop_takes_a_last_checkpoint_and_commits_it() -> None:
    subject = running()
    effects = subject.step(d.StopRequested(d.StopKind.WITH_CHECKPOINT))
    assert effects == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.TransactionsCommitted(1))
    assert effects[-1] == "stopped: chk-1 covers everything"


def test_a_stop_with_a_mode_gives_up_what_is_under_way_and_barriers_of_that_mode_go_out() -> None:
    subject = with_checkpoint_under_way()
    stop = d.StopRequested(d.StopKind.WITH_CHECKPOINT, CheckpointMode.UNALIGNED)
    effects = subject.step(stop)
    assert effects == ["Cancelled to 0", "Cancelled to 1", "Trigger to 0", "Trigger to 1"]
    trigger = subject.messages[-1]
    assert isinstance(trigger, m.Trigger)
    assert (trigger.checkpoint, trigger.mode) == (2, "unaligned")
    subject.acknowledge(2, "a")
    assert subject.metadata[2].mode == "unaligned"
    subject.step(d.MetadataWritten(2))
    assert subject.step(d.TransactionsCommitted(2))[-1] == "stopped: chk-2 covers everything"


def test_the_last_checkpoint_of_a_stop_overtakes_when_it_is_late() -> None:
    checkpoints = dataclasses.replace(RULES.checkpoints, last_aligned_ns=MS)
    subject = running(dataclasses.replace(RULES, checkpoints=checkpoints))
    stop = d.StopRequested(d.StopKind.WITH_CHECKPOINT)
    assert subject.step(stop) == ["Trigger to 0", "Trigger to 1"]
    assert subject.machine.next_deadline_ns() == MS
    cancelled = ["Cancelled to 0", "Cancelled to 1"]
    assert subject.at(MS) == [*cancelled, "Trigger to 0", "Trigger to 1"]
    trigger = subject.messages[-1]
    assert isinstance(trigger, m.Trigger)
    assert (trigger.checkpoint, trigger.mode) == (2, "unaligned")
    assert not any("failed" in notice for notice in subject.notices), "all goes as planned"
    subject.acknowledge(2, "a")
    subject.step(d.MetadataWritten(2))
    assert subject.step(d.TransactionsCommitted(2))[-1] == "stopped: chk-2 covers everything"


def test_a_stop_without_a_mode_waits_for_what_is_under_way() -> None:
    subject = with_checkpoint_under_way()
    assert subject.step(d.StopRequested(d.StopKind.WITH_CHECKPOINT)) == []
    subject.acknowledge(1)
    effects = subject.step(d.MetadataWritten(1))
    assert effects[-2:] == ["Trigger to 0", "Trigger to 1"]


def test_a_stop_whose_cut_came_before_the_end_of_input_has_not_finished() -> None:
    """What the tasks put out between the cut and their end is in no checkpoint."""
    subject = running()
    subject.step(d.StopRequested(d.StopKind.WITH_CHECKPOINT))
    subject.acknowledge(1, "a")
    finished(subject)
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.TransactionsCommitted(1))
    assert effects[-1] == "stopped: chk-1 covers everything"


def test_a_drain_gives_up_what_is_under_way_and_takes_one_checkpoint_when_all_have_finished() -> (
    None
):
    subject = with_checkpoint_under_way()
    effects = subject.step(d.StopRequested(d.StopKind.DRAIN))
    assert effects == ["Cancelled to 0", "Cancelled to 1", "Drain to 0", "Drain to 1"]
    assert subject.at(450 * MS) == [], "half drained, a checkpoint would lose what is not read"
    effects = finished(subject)
    assert effects == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(2, "a", finished=True)
    subject.step(d.MetadataWritten(2))
    assert subject.step(d.TransactionsCommitted(2))[-1] == "finished: chk-2 covers everything"


def test_the_next_attempt_is_drained_too() -> None:
    subject = running()
    subject.step(d.StopRequested(d.StopKind.DRAIN))
    failed(subject)
    subject.at(10 * MS)
    subject.step(d.EpochClaimed(2))
    subject.step(d.SinksRecovered(2))
    effects = subject.both(m.Deployed(2))
    assert effects == ["Start to 0", "Start to 1", "Drain to 0", "Drain to 1"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (d.StopKind.DRAIN, d.StopKind.WITH_CHECKPOINT),
        (d.StopKind.WITH_CHECKPOINT, d.StopKind.DRAIN),
    ],
)
def test_of_a_stop_and_a_drain_the_first_counts(first: d.StopKind, second: d.StopKind) -> None:
    subject = running()
    subject.step(d.StopRequested(first))
    assert subject.step(d.StopRequested(second)) == []
    assert subject.step(d.StopRequested(d.StopKind.NOW))[-1] == "stopped: stopped at once"


def test_the_first_stop_counts_and_whoever_comes_later_is_told() -> None:
    subject = running()
    assert subject.step(d.StopRequested(d.StopKind.DRAIN, request=1)) == [
        "Drain to 0",
        "Drain to 1",
    ]
    later = d.StopRequested(d.StopKind.WITH_CHECKPOINT, request=2)
    assert subject.step(later) == ["answer 2: the job is ending already"]


def test_a_job_that_is_about_to_end_cannot_be_stopped() -> None:
    subject = with_checkpoint_under_way()
    subject.acknowledge(1, "a")
    subject.step(d.StopRequested(d.StopKind.NOW))
    assert subject.machine.phase is Phase.CLOSING
    later = d.StopRequested(d.StopKind.DRAIN, request=3)
    assert subject.step(later) == ["answer 3: the job is ending already"]
    subject.step(d.MetadataWritten(1))
    assert subject.step(d.TransactionsCommitted(1))[-1] == "stopped: stopped at once"


def test_who_waits_for_the_last_savepoint_is_answered_once() -> None:
    subject = running()
    order = d.SavepointOrder()
    stop = d.StopRequested(d.StopKind.WITH_CHECKPOINT, savepoint=order, request=7)
    effects = subject.step(stop) + subject.acknowledge(1, "a")
    effects += subject.step(d.MetadataWritten(1)) + subject.step(d.TransactionsCommitted(1))
    assert [effect for effect in effects if effect.startswith("answer")] == ["answer 7: 1"]
    assert effects[-1] == "stopped: savepoint 1 covers everything"


def test_who_waits_for_the_last_savepoint_is_told_that_the_job_ended_without_it() -> None:
    subject = running()
    order = d.SavepointOrder()
    subject.step(d.StopRequested(d.StopKind.DRAIN, savepoint=order, request=7))
    effects = subject.step(d.LauncherFailed("gone"))
    assert "answer 7: the job ended without it: gone" in effects


def test_when_the_last_savepoint_fails_the_job_may_be_stopped_again() -> None:
    subject = running()
    order = d.SavepointOrder()
    subject.step(d.StopRequested(d.StopKind.WITH_CHECKPOINT, savepoint=order, request=7))
    effects = subject.said(0, m.Decline(1, 1, "disk full"))
    assert effects == ["Cancelled to 0", "Cancelled to 1", "answer 7: disk full"]
    assert subject.machine.phase is Phase.RUNNING
    again = d.StopRequested(d.StopKind.WITH_CHECKPOINT, request=8)
    assert subject.step(again) == ["Trigger to 0", "Trigger to 1"]


def test_when_the_last_savepoint_of_a_drained_job_fails_a_new_attempt_reads_on() -> None:
    subject = running()
    order = d.SavepointOrder()
    subject.step(d.StopRequested(d.StopKind.DRAIN, savepoint=order, request=7))
    finished(subject)
    effects = subject.said(0, m.Decline(1, 1, "disk full"))
    assert effects[2:] == ["answer 7: disk full", "Abandon to 0", "Abandon to 1"]
    assert subject.machine.phase is Phase.RESTARTING


def test_a_job_that_has_not_started_is_drained_when_it_has() -> None:
    subject = Driven()
    subject.start()
    assert subject.step(d.StopRequested(d.StopKind.DRAIN)) == []
    subject.step(d.EpochClaimed(1))
    subject.step(d.SinksRecovered(1))
    for worker in (0, 1):
        subject.register(worker)
    assert subject.both(m.Deployed(1))[-2:] == ["Drain to 0", "Drain to 1"]


def test_a_stop_that_names_its_mode_or_a_savepoint_never_turns_unaligned() -> None:
    kind = d.StopKind.WITH_CHECKPOINT
    for asked in (
        d.StopRequested(kind, mode=CheckpointMode.ALIGNED),
        d.StopRequested(kind, savepoint=d.SavepointOrder()),
        d.StopRequested(d.StopKind.DRAIN),
    ):
        stop = Stop(5 * MS)
        stop.ask(asked, 0)
        assert stop.overtake_at_ns is None
        assert not stop.overtakes(6 * MS)


def test_a_late_stop_turns_unaligned_once() -> None:
    stop = Stop(5 * MS)
    stop.ask(d.StopRequested(d.StopKind.WITH_CHECKPOINT), 2 * MS)
    assert not stop.overtakes(7 * MS - 1)
    assert stop.overtakes(7 * MS)
    assert stop.asked is not None
    assert stop.asked.mode is CheckpointMode.UNALIGNED
    assert not stop.overtakes(8 * MS)
