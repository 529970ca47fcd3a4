"""Unaligned cuts, driven by hand through the subtask: what barriers overtake, what is captured,
and when timeouts make them.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.channels.events import Barrier, CheckpointMode, EndOfInput
from headrace.engine.worker.subtask_events import (
    CheckpointCancelled,
    CheckpointTriggered,
    CreditGranted,
    DeadlineReached,
    Hold,
)
from headrace.engine.worker.subtask_spec import Limits

from .driven_subtask import ROW_BYTES, A, B, Driven, X, barrier, without_credit


def unaligned(checkpoint: int) -> Barrier:
    return barrier(checkpoint, CheckpointMode.UNALIGNED)


def test_the_first_unaligned_barrier_cuts_and_what_comes_before_the_others_is_captured() -> None:
    subject = Driven()
    subject.start()
    assert subject.event(A, unaligned(1)) == ["send e1:0>0 barrier 1@0", "snapshot 1"]
    assert subject.records(A, 3) == ["run 1: port 0 [0, 1, 2]"], "nothing is blocked"
    subject.records(B, 2)
    assert subject.event(B, unaligned(1)) == [
        "cut 1: received 0 0; sent 0; input e0:1>0 0..2",
    ]


def test_an_unaligned_cut_is_before_the_running_work_and_captures_its_input() -> None:
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.records(A, 2)
    subject.records(A, 3)
    assert subject.event(A, unaligned(1)) == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "cut 1: received 0; sent 0; input e0:0>0 0..5",
    ]
    assert subject.done(1, 1)[0] == "commit"


def test_an_unaligned_barrier_overtakes_and_captures_what_waits_for_credit() -> None:
    subject = without_credit()
    assert subject.event(A, unaligned(1)) == ["send e1:0>0 barrier 1@1", "snapshot 1"]
    effects = subject.event(B, unaligned(1))
    assert effects == ["cut 1: received 1 0; sent 20; output e1:0>0 1..20"]
    assert subject.step(CreditGranted(X, 1_000 * ROW_BYTES))[0] == "send e1:0>0 1..10"


def test_a_sinks_cut_waits_for_its_running_work_even_if_unaligned() -> None:
    subject = Driven(inputs=((A,),), outputs=(), is_sink=True)
    subject.start()
    subject.records(A, 2)
    assert subject.event(A, unaligned(1)) == []
    assert subject.done(1)[-1] == "run 2: pre-commit 1"
    assert subject.done(2)[-1] == "cut 1: received 2; sent "


def test_an_end_of_input_that_was_overtaken_is_captured() -> None:
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.records(A, 2)
    subject.event(A, EndOfInput())
    effects = subject.event(A, unaligned(1))
    assert effects[-1] == "cut 1: received 0; sent 0; input e0:0>0 0..2 and the end"


def test_an_aligned_checkpoint_becomes_unaligned_at_its_deadline() -> None:
    limits = Limits(80, 800, 80, 4, 1_000, alignment_timeout_ns=100)
    subject = Driven(limits=limits)
    subject.start()
    assert subject.event(A, barrier(1)) == []
    assert subject.records(A, 1) == [], "blocked"
    assert subject.records(B, 2) == ["run 1: port 0 [0, 1]"]
    assert subject.subtask.next_deadline_ns() == 100
    subject.now_ns = 100
    assert subject.step(DeadlineReached()) == ["send e1:0>0 barrier 1@0", "snapshot 1"]
    assert subject.subtask.next_deadline_ns() is None
    assert subject.event(B, unaligned(1))[-1] == "cut 1: received 0 0; sent 0; input e0:1>0 0..2"


def test_a_cancelled_unaligned_cut_is_never_handed_over() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, unaligned(1))
    subject.step(CheckpointCancelled(1))
    assert subject.event(B, unaligned(1)) == []
    subject.event(A, unaligned(2))
    assert subject.event(B, unaligned(2))[-1] == "cut 2: received 0 0; sent 0"


def test_a_sinks_cut_that_is_cancelled_while_it_waits_is_not_taken() -> None:
    subject = Driven(inputs=((A,),), outputs=(), is_sink=True)
    subject.start()
    subject.records(A, 2)
    assert subject.event(A, unaligned(1)) == [], "its work is running"
    subject.step(CheckpointCancelled(1))
    assert subject.done(1)[0] == "commit"
    assert subject.records(A, 1) == ["run 2: port 0 [2]"], "no pre-commit"


def test_barriers_of_a_checkpoint_that_was_cancelled_before_they_came_mean_nothing() -> None:
    subject = Driven()
    subject.start()
    subject.step(CheckpointCancelled(1))
    assert subject.event(A, unaligned(1)) == []
    assert subject.event(B, unaligned(1)) == []
    assert subject.records(A, 1) == ["run 1: port 0 [0]"]


def test_a_second_barrier_on_one_channel_is_a_bug() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, unaligned(1))
    with pytest.raises(AssertionError, match="a second barrier"):
        subject.event(A, unaligned(1))


def test_several_unaligned_checkpoints_are_in_flight_at_once() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, unaligned(1))
    subject.records(A, 2)
    assert subject.event(A, unaligned(2)) == ["send e1:0>0 barrier 2@0", "snapshot 2"]
    subject.records(B, 3)
    assert subject.event(B, unaligned(1)) == ["cut 1: received 0 0; sent 0; input e0:1>0 0..3"]
    subject.records(B, 1)
    assert subject.event(B, unaligned(2)) == [
        "cut 2: received 0 0; sent 0; input e0:0>0 0..2; input e0:1>0 0..4"
    ], "what neither has consumed belongs to both"


def test_what_was_sent_before_the_cut_is_not_captured() -> None:
    subject = without_credit()
    for checkpoint, sent in ((1, 1), (2, 11)):
        subject.event(A, unaligned(checkpoint))
        effects = subject.event(B, unaligned(checkpoint))
        assert effects[-1].endswith(f"sent 20; output e1:0>0 {sent}..20")
        subject.step(CreditGranted(X, 11 * ROW_BYTES))


def test_an_end_of_input_before_a_missing_barrier_is_captured() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, unaligned(1))
    subject.records(B, 2)
    subject.event(B, EndOfInput())
    assert subject.event(B, unaligned(1)) == [
        "cut 1: received 0 0; sent 0; input e0:1>0 0..2 and the end"
    ]


def test_an_end_of_input_behind_the_barrier_is_not_captured() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, unaligned(1))
    subject.event(A, EndOfInput())
    assert subject.event(B, unaligned(1)) == ["cut 1: received 0 0; sent 0"]


def test_an_end_of_input_that_was_consumed_is_in_the_position() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, EndOfInput())
    subject.event(A, unaligned(1))
    subject.event(B, unaligned(1))
    (cut,) = subject.cuts
    assert [position.ended for position in cut.received] == [True, False]
    assert cut.inflight == ()


def test_the_subtasks_own_end_is_captured_behind_what_waits_for_credit() -> None:
    subject = Driven(inputs=((A,),), limits=Limits(80, ROW_BYTES, 800, 4, 1_000))
    subject.start()
    subject.records(A, 1)
    subject.event(A, EndOfInput())
    subject.done(1, 3)
    assert "finished" in subject.done(2)
    effects = subject.event(A, unaligned(1))
    assert effects[-1] == "cut 1: received 1; sent 3; output e1:0>0 1..3 and the end"


# --- aligned checkpoints that become unaligned ----------------------------------------------------


def with_timeout(queue_bytes_max: int = 80, **options: Any) -> Driven:
    """Aligned checkpoints, all created at 0, become unaligned at 100; one record of credit."""
    limits = Limits(80, options.pop("window", 800), queue_bytes_max, 4, 1_000, None, 100)
    subject = Driven(limits=limits, **options)
    subject.start()
    return subject


def test_a_barrier_that_arrives_late_overtakes_at_once() -> None:
    subject = with_timeout()
    subject.records(A, 6)
    subject.event(A, barrier(1))
    subject.now_ns = 100
    assert subject.event(B, barrier(1)) == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "cut 1: received 0 0; sent 0; input e0:0>0 0..6",
    ]
    assert subject.subtask.next_deadline_ns() is None


def test_an_unaligned_barrier_makes_those_that_wait_overtake_too() -> None:
    """A sibling's deadline came first."""
    subject = with_timeout()
    subject.records(A, 6)
    subject.event(A, barrier(1))
    subject.records(B, 1)
    assert subject.event(B, unaligned(1))[-1] == (
        "cut 1: received 0 0; sent 0; input e0:0>0 0..6; input e0:1>0 0..1"
    )


def test_an_unaligned_barrier_overtakes_without_any_timeout() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, barrier(1))
    assert subject.records(A, 2) == [], "blocked"
    assert subject.event(B, unaligned(1)) == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "run 1: port 0 [0, 1]",
        "cut 1: received 0 0; sent 0",
    ], "nothing of A lies before its barrier"


def test_a_barrier_that_is_late_behind_records_overtakes_them_at_the_deadline() -> None:
    subject = with_timeout(inputs=((A,),))
    subject.records(A, 6)
    subject.event(A, barrier(1))
    subject.records(A, 2)
    assert subject.subtask.next_deadline_ns() == 100
    subject.now_ns = 100
    assert subject.step(DeadlineReached()) == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "cut 1: received 0; sent 0; input e0:0>0 0..6",
    ]


def test_before_the_deadline_nothing_overtakes() -> None:
    subject = with_timeout()
    subject.records(A, 6)
    subject.event(A, barrier(1))
    subject.now_ns = 99
    assert subject.step(DeadlineReached()) == []


def test_a_barrier_that_still_stands_in_an_output_at_the_deadline_is_hastened() -> None:
    subject = with_timeout(800, inputs=((A,),), window=ROW_BYTES)
    subject.records(A, 1)
    subject.event(A, barrier(1))
    assert subject.done(1, 3, 3)[-2:] == [f"send {X} 0..1", "snapshot 1"], "no cut yet"
    assert subject.subtask.next_deadline_ns() == 100
    subject.now_ns = 100
    assert subject.step(DeadlineReached()) == [
        "send e1:0>0 barrier 1@1",
        "cut 1: received 1; sent 6; output e1:0>0 1..6",
    ]
    assert subject.subtask.next_deadline_ns() is None


def test_an_aligned_barrier_that_left_in_time_captures_nothing() -> None:
    subject = with_timeout(800, inputs=((A,),), window=ROW_BYTES)
    subject.records(A, 1)
    subject.event(A, barrier(1))
    subject.done(1, 3)
    assert subject.step(CreditGranted(X, 100 * ROW_BYTES)) == [
        "send e1:0>0 1..3",
        "send e1:0>0 barrier 1@3",
        "cut 1: received 1; sent 3",
    ]
    assert subject.subtask.next_deadline_ns() is None


def test_a_source_that_is_triggered_too_late_cuts_unaligned() -> None:
    subject = with_timeout(800, inputs=(), window=ROW_BYTES)
    subject.done(1, 3)
    subject.now_ns = 100
    assert subject.step(CheckpointTriggered(barrier(1))) == [
        "send e1:0>0 barrier 1@1",
        "snapshot 1",
        "cut 1: received ; sent 3; output e1:0>0 1..3",
    ]


def test_a_checkpoint_cancelled_while_it_waits_has_no_deadline() -> None:
    subject = with_timeout()
    subject.event(A, barrier(1))
    subject.step(CheckpointCancelled(1))
    assert subject.subtask.next_deadline_ns() is None
    subject.now_ns = 100
    assert subject.step(DeadlineReached()) == []


def test_the_oldest_checkpoint_sets_the_deadline_and_each_overtakes_at_its_own() -> None:
    subject = with_timeout(inputs=((A,),))
    subject.records(A, 6)
    subject.event(A, barrier(1))
    subject.event(A, Barrier(2, CheckpointMode.ALIGNED, created_ns=50))
    subject.now_ns = 100
    assert subject.step(DeadlineReached())[-1] == "cut 1: received 0; sent 0; input e0:0>0 0..6"
    assert subject.subtask.next_deadline_ns() == 150
    subject.now_ns = 150
    assert subject.step(DeadlineReached())[-1] == "cut 2: received 0; sent 0; input e0:0>0 0..6"


# --- what a cut waited for ------------------------------------------------------------------------


def test_a_sinks_unaligned_cut_tells_of_the_write_it_waited_for() -> None:
    subject = Driven(inputs=((A,),), outputs=(), is_sink=True)
    subject.start()
    subject.records(A, 2)
    subject.now_ns = 10
    subject.event(A, unaligned(1))
    subject.now_ns = 60
    subject.done(1)
    subject.done(2)
    assert [cut.holds for cut in subject.cuts] == [(Hold("work", None, 50),)]


def test_an_unaligned_cut_waits_for_no_work_but_tells_of_the_last_barrier() -> None:
    subject = Driven()
    subject.start()
    subject.records(A, 2)
    subject.now_ns = 10
    subject.event(A, unaligned(1))
    subject.now_ns = 70
    subject.event(B, unaligned(1))
    assert [cut.holds for cut in subject.cuts] == [(Hold("barrier", B, 60),)]


def test_a_cut_tells_of_the_output_that_its_barrier_left_last() -> None:
    limits = Limits(80, ROW_BYTES, 800, 4, 1_000, None, 100)
    subject = Driven(inputs=((A,),), limits=limits)
    subject.start()
    subject.records(A, 1)
    subject.done(1, 5, 5)
    subject.event(A, barrier(1))
    assert subject.cuts == [], "it stands behind records without credit"
    subject.now_ns = 100
    subject.step(DeadlineReached())
    assert [cut.holds for cut in subject.cuts] == [(Hold("output", X, 100),)]


def test_an_aligned_cut_that_became_unaligned_waits_from_its_deadline_on() -> None:
    subject = Driven(
        outputs=(), is_sink=True, limits=Limits(80, 800, 80, 4, 1_000, alignment_timeout_ns=100)
    )
    subject.start()
    subject.records(B, 2)
    subject.event(A, barrier(1))
    subject.now_ns = 100
    subject.step(DeadlineReached())
    subject.now_ns = 130
    subject.done(1)
    subject.now_ns = 150
    subject.event(B, unaligned(1))
    subject.done(2)
    (cut,) = subject.cuts
    waited = {w.kind: w.held_ns for w in cut.holds}
    assert waited == {"barrier": 150, "work": 30, "pre-commit": 20}
