"""The end of a job: what is waited for, what is left to a successor, and the sweep of the sinks."""

from __future__ import annotations

import pytest

from headrace.engine.coordinator import coordinator_events as d

from .driven_coordinator import (
    MS,
    RULES,
    Driven,
    failed,
    running,
    with_checkpoint_under_way,
)


def test_a_cancelled_job_ends_at_once_and_aborts_what_is_open() -> None:
    subject = running()
    subject.step(d.CheckpointRequested(5))
    effects = subject.step(d.StopRequested(d.StopKind.NOW))
    assert effects == [
        "answer 5: stopped at once",
        "Abandon to 0",
        "Abandon to 1",
        "recover sinks in 1: []",
        "withdraw 1 patiently",
        "delete 1 patiently",
        "Shutdown to 0",
        "Shutdown to 1",
        "stopped: stopped at once",
    ]


def swept() -> Driven:
    """A stopped job whose sinks are asked for what dead attempts have left."""
    subject = running()
    subject.answers_sweep = False
    assert subject.step(d.StopRequested(d.StopKind.NOW))[-1] == "recover sinks in 1: []"
    return subject


def test_a_job_that_is_over_asks_its_sinks_again_until_they_answer() -> None:
    subject = swept()
    assert subject.step(d.SinkFailed(None, "no answer")) == []
    due_ns = subject.machine.next_deadline_ns()
    assert due_ns is not None
    assert subject.at(due_ns) == ["recover sinks in 1: []"]
    assert subject.step(d.SinksRecovered(1))[-1] == "stopped: stopped at once"


def test_a_job_that_is_over_ends_though_its_sinks_never_answer() -> None:
    subject = swept()
    for _ in range(RULES.restarts.attempts_max):
        assert subject.step(d.SinkFailed(None, "no answer")) == []
        subject.at(subject.machine.next_deadline_ns() or 0)
    assert subject.step(d.SinkFailed(None, "no answer"))[-1] == "stopped: stopped at once"
    assert subject.notices[-1] == (
        "warning: no answer; what dead attempts left in the sinks stays until the next run of the"
        " job"
    )


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
