"""Cuts, driven by hand through the subtask: when they are taken, where, and what is captured."""

from __future__ import annotations

from headrace.channels.events import CheckpointMode
from headrace.engine.contract.operators import Transaction
from headrace.engine.worker.subtask_events import (
    CheckpointCancelled,
    CheckpointCompleted,
    CheckpointTriggered,
    CreditGranted,
    Hold,
)
from headrace.engine.worker.subtask_spec import Limits

from .driven_subtask import (
    ROW_BYTES,
    A,
    B,
    Driven,
    X,
    barrier,
    sink,
    source,
)

# --- aligned checkpoints --------------------------------------------------------------------------


def test_a_barrier_waits_for_the_running_work() -> None:
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.records(A, 2)
    assert subject.event(A, barrier(1)) == []
    assert subject.done(1, 5) == [
        "commit",
        "send e1:0>0 0..5",
        "send e1:0>0 barrier 1@5",
        "snapshot 1",
        "cut 1: received 2; sent 5",
    ]


def test_a_barrier_waits_for_the_records_before_it() -> None:
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.records(A, 6)
    subject.event(A, barrier(1))
    subject.records(A, 1)
    assert subject.done(1)[-1] == "run 2: port 0 [4, 5]"
    assert subject.done(2)[-4:] == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "run 3: port 0 [6]",
        "cut 1: received 6; sent 0",
    ]


def test_a_channel_that_delivered_its_barrier_is_blocked_until_all_have() -> None:
    subject = Driven()
    subject.start()
    assert subject.event(A, barrier(1)) == []
    assert subject.records(A, 3) == [], "it belongs to the next checkpoint"
    assert subject.records(B, 2) == ["run 1: port 0 [0, 1]"]
    subject.event(B, barrier(1))
    effects = subject.done(1)
    assert effects[-4:] == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "run 2: port 0 [0, 1, 2]",
        "cut 1: received 0 2; sent 0",
    ]


def test_how_long_alignment_took_is_reported() -> None:
    subject = Driven()
    subject.start()
    subject.now_ns = 100
    subject.event(A, barrier(1))
    subject.now_ns = 130
    subject.event(B, barrier(1))
    (cut,) = subject.cuts
    assert (cut.start_delay_ns, cut.alignment_ns) == (100, 30)


def test_a_cancelled_checkpoint_unblocks_and_its_late_barrier_is_ignored() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, barrier(1))
    subject.records(A, 1)
    assert subject.step(CheckpointCancelled(1)) == ["run 1: port 0 [0]"]
    assert subject.event(B, barrier(1)) == []
    assert "snapshot" not in str(subject.done(1))
    subject.event(A, barrier(2))
    assert subject.event(B, barrier(2))[-1] == "cut 2: received 1 0; sent 0"


def test_a_newer_barrier_declines_the_older_checkpoint() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, barrier(1))
    subject.records(A, 1)
    assert subject.event(B, barrier(2)) == ["decline 1", "run 1: port 0 [0]"]


def test_at_least_once_blocks_no_channel() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, barrier(1, CheckpointMode.AT_LEAST_ONCE))
    assert subject.records(A, 1) == ["run 1: port 0 [0]"]
    subject.event(B, barrier(1, CheckpointMode.AT_LEAST_ONCE))
    effects = subject.done(1)
    assert effects[-1] == "cut 1: received 1 0; sent 0"


def test_a_barrier_waits_behind_records_without_credit_but_the_snapshot_does_not() -> None:
    subject = Driven(inputs=((A,),), limits=Limits(80, ROW_BYTES, 800, 4, 1_000))
    subject.start()
    subject.records(A, 1)
    subject.event(A, barrier(1))
    effects = subject.done(1, 3, 3)
    assert effects[2:] == ["send e1:0>0 0..1", "snapshot 1", "cut 1: received 1; sent 6"]
    assert subject.step(CreditGranted(X, 100 * ROW_BYTES)) == [
        "send e1:0>0 1..6",
        "send e1:0>0 barrier 1@6",
    ]


# --- sinks ----------------------------------------------------------------------------------------


def transaction(id: str) -> tuple[str, Transaction]:
    return "out", Transaction(id, {})


def cut_a_sink(subject: Driven, checkpoint: int, work: int, id: str) -> None:
    """It writes a record before; that is `work`."""
    assert subject.records(A, 1)[0].startswith(f"run {work}: port 0")
    subject.done(work)
    subject.event(A, barrier(checkpoint))
    assert subject.event(B, barrier(checkpoint)) == [f"run {work + 1}: pre-commit {checkpoint}"]
    assert subject.done(work + 1, transactions=(transaction(id),))[0] == "commit"


def test_a_sink_pre_commits_and_then_snapshots() -> None:
    subject = sink()
    subject.start()
    subject.event(A, barrier(1))
    assert subject.event(B, barrier(1)) == ["run 1: pre-commit 1"]
    assert subject.records(A, 1) == [], "work waits for the pre-commit"
    effects = subject.done(1, transactions=(transaction("t1"),))
    assert effects == ["commit", "snapshot 1", "run 2: port 0 [0]", "cut 1: received 0 0; sent "]
    assert subject.cuts[0].transactions == (transaction("t1"),)


def test_a_sink_that_wrote_nothing_since_its_last_pre_commit_needs_none() -> None:
    """Checkpoints that follow each other faster than it flushes must not keep it from writing."""
    subject = sink()
    subject.start()
    cut_a_sink(subject, 1, 1, "t1")
    subject.event(A, barrier(2))
    effects = subject.event(B, barrier(2))
    assert effects == ["snapshot 2", "cut 2: received 1 0; sent "]
    assert subject.cuts[1].transactions == (transaction("t1"),), "the first is not complete"


def test_transactions_are_carried_over_until_their_checkpoint_is_complete() -> None:
    subject = sink()
    subject.start()
    cut_a_sink(subject, 1, 1, "t1")
    cut_a_sink(subject, 2, 3, "t2")
    subject.step(CheckpointCompleted(1))
    cut_a_sink(subject, 3, 5, "t3")
    subject.step(CheckpointCompleted(3))
    cut_a_sink(subject, 4, 7, "t4")
    assert [[t.id for _, t in cut.transactions] for cut in subject.cuts] == [
        ["t1"],
        ["t1", "t2"],
        ["t2", "t3"],
        ["t4"],
    ]


def test_what_a_cancelled_checkpoint_pre_committed_rides_with_the_next() -> None:
    subject = sink()
    subject.start()
    cut_a_sink(subject, 1, 1, "t1")
    subject.step(CheckpointCancelled(1))
    cut_a_sink(subject, 2, 3, "t2")
    assert [t.id for _, t in subject.cuts[-1].transactions] == ["t1", "t2"]


def test_a_checkpoint_cancelled_during_its_pre_commit_loses_no_transaction() -> None:
    subject = sink()
    subject.start()
    subject.event(A, barrier(1))
    subject.event(B, barrier(1))
    subject.step(CheckpointCancelled(1))
    subject.done(1, transactions=(transaction("t1"),))
    cut_a_sink(subject, 2, 2, "t2")
    assert [t.id for _, t in subject.cuts[-1].transactions] == ["t1", "t2"]


# --- what a cut waited for ------------------------------------------------------------------------


def test_an_aligned_cut_tells_of_the_last_barrier_and_of_the_work_before_it() -> None:
    subject = Driven()
    subject.start()
    subject.records(B, 2)
    subject.now_ns = 10
    subject.event(A, barrier(1))
    subject.now_ns = 40
    subject.event(B, barrier(1))
    subject.now_ns = 95
    subject.done(1)
    (cut,) = subject.cuts
    assert cut.holds == (Hold("work", None, 55), Hold("barrier", B, 30))


def test_a_cut_that_waited_for_nothing_says_so() -> None:
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.now_ns = 10
    subject.event(A, barrier(1))
    assert [cut.holds for cut in subject.cuts] == [()]


def test_a_sources_cut_tells_of_the_poll_it_waited_for() -> None:
    subject = source()
    subject.start()
    subject.now_ns = 10
    subject.step(CheckpointTriggered(barrier(1)))
    subject.now_ns = 25
    subject.done(1)
    assert [cut.holds for cut in subject.cuts] == [(Hold("work", None, 15),)]


def test_a_sinks_cut_tells_of_its_pre_commit() -> None:
    subject = sink()
    subject.start()
    subject.event(A, barrier(1))
    subject.event(B, barrier(1))
    subject.now_ns = 12
    subject.done(1)
    assert [cut.holds for cut in subject.cuts] == [(Hold("pre-commit", None, 12),)]


def test_what_a_cancelled_checkpoint_waited_for_is_forgotten() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, barrier(1))
    subject.step(CheckpointCancelled(1))
    subject.now_ns = 50
    subject.event(A, barrier(2))
    subject.event(B, barrier(2))
    assert [cut.holds for cut in subject.cuts] == [()]
