"""The subtask machine, driven by hand: what it asks for, in which order, and where it cuts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, ChannelEvent, CheckpointMode, EndOfInput
from headrace.channels.gate import ChannelViolation
from headrace.engine.operators.base import SourceStatus, Transaction
from headrace.engine.operators.chain import Outputs
from headrace.engine.runtime.subtask import Limits, Subtask, SubtaskSpec
from headrace.engine.runtime.work import (
    BufferArrived,
    CapturedRun,
    CheckpointCancelled,
    CheckpointCompleted,
    CheckpointTriggered,
    CommitWork,
    CreditGranted,
    Cut,
    CutTaken,
    DeadlineReached,
    DeclineCheckpoint,
    EventArrived,
    FinishWork,
    GrantCredit,
    PollWork,
    PrecommitWork,
    ProcessWork,
    RunWork,
    SendBuffer,
    SendEvent,
    SubtaskEffect,
    SubtaskEvent,
    SubtaskFinished,
    SubtaskId,
    TakeSnapshot,
    WorkDone,
)
from headrace.recovery.metadata import ChannelPosition

ROW_BYTES = 8
A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
X, Y = ChannelId(1, 0, 0), ChannelId(1, 0, 1)
MIDDLE = SubtaskId(1, 0)
LIMITS = Limits(
    buffer_bytes=10 * ROW_BYTES,
    window_bytes=100 * ROW_BYTES,
    queue_bytes_max=10 * ROW_BYTES,
    work_rows_max=4,
    work_target_ns=1_000,
)


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(start, start + rows), pa.int64())})


def barrier(checkpoint: int, mode: CheckpointMode = CheckpointMode.ALIGNED) -> Barrier:
    return Barrier(checkpoint, mode, created_ns=0)


class Driven:
    """A subtask whose effects are noted as text; `now_ns` is the test's to set."""

    def __init__(
        self,
        inputs: Sequence[Sequence[ChannelId]] = ((A, B),),
        outputs: Sequence[Sequence[ChannelId]] = ((X,),),
        *,
        is_sink: bool = False,
        limits: Limits = LIMITS,
        finished: bool = False,
        received: Sequence[ChannelPosition] = (),
        sent: Sequence[ChannelPosition] = (),
    ) -> None:
        self.subtask = Subtask(
            SubtaskSpec(
                id=MIDDLE,
                is_source=not inputs,
                is_sink=is_sink,
                inputs=inputs,
                outputs=outputs,
                limits=limits,
                finished=finished,
                received={ChannelId(p.edge, p.producer, p.consumer): p for p in received},
                sent={ChannelId(p.edge, p.producer, p.consumer): p for p in sent},
            )
        )
        self.now_ns = 0
        self.cuts: list[Cut] = []
        self.arrived: dict[ChannelId, int] = {
            ChannelId(p.edge, p.producer, p.consumer): p.position for p in received
        }

    def start(self) -> list[str]:
        return self._noted(self.subtask.start(self.now_ns))

    def step(self, event: SubtaskEvent) -> list[str]:
        effects = self._noted(self.subtask.step(event, self.now_ns))
        self.subtask.check()
        return effects

    def records(self, channel: ChannelId, rows: int) -> list[str]:
        """`rows` records arrive; they are their own positions."""
        first = self.arrived.get(channel, 0)
        self.arrived[channel] = first + rows
        buffer = Buffer(first, rows, rows * ROW_BYTES, (batch(first, rows),))
        return self.step(BufferArrived(channel, buffer))

    def event(self, channel: ChannelId, event: ChannelEvent) -> list[str]:
        return self.step(EventArrived(channel, self.arrived.get(channel, 0), event))

    def done(self, work: int, *rows: int, **more: object) -> list[str]:
        """The work ended and emitted batches of `rows` to target 0 of the first output edge."""
        pieces = tuple((0, batch(0, count), count * ROW_BYTES) for count in rows)
        outputs: Outputs = (pieces,) if rows else ()
        return self.step(WorkDone(work, outputs, sum(rows), **more))  # type: ignore[arg-type]  # the tests' own keywords

    def _noted(self, effects: list[SubtaskEffect]) -> list[str]:
        self.cuts += [e.cut for e in effects if isinstance(e, CutTaken)]
        return [noted(effect) for effect in effects]


def noted(effect: SubtaskEffect) -> str:
    match effect:
        case RunWork(_, number, ProcessWork(port, parts, rows)):
            values = [x for part in parts for x in part["x"].to_pylist()]
            assert len(values) == rows
            return f"run {number}: port {port} {values}"
        case RunWork(_, number, PollWork(rows_max)):
            return f"run {number}: poll {rows_max}"
        case RunWork(_, number, FinishWork()):
            return f"run {number}: finish"
        case RunWork(_, number, PrecommitWork(checkpoint)):
            return f"run {number}: pre-commit {checkpoint}"
        case CommitWork():
            return "commit"
        case SendBuffer(channel, buffer):
            return f"send {channel} {buffer.first}..{buffer.end}"
        case SendEvent(channel, position, event):
            name = f"barrier {event.checkpoint}" if isinstance(event, Barrier) else "end"
            return f"send {channel} {name}@{position}"
        case GrantCredit(channel, limit_bytes):
            return f"grant {channel} {limit_bytes}"
        case TakeSnapshot(_, checkpoint):
            return f"snapshot {checkpoint}"
        case CutTaken(cut):
            received = " ".join(str(c.position) for c in cut.received)
            sent = " ".join(str(c.position) for c in cut.sent)
            inflight = "".join(f"; {captured(run)}" for run in cut.inflight)
            return f"cut {cut.checkpoint}: received {received}; sent {sent}{inflight}"
        case DeclineCheckpoint(_, checkpoint):
            return f"decline {checkpoint}"
        case SubtaskFinished():
            return "finished"
    return f"other {effect}"


def captured(run: CapturedRun) -> str:
    end = run.buffers[-1].end if run.buffers else run.first
    ended = " and the end" if run.ended else ""
    return f"{run.side} {run.channel} {run.first}..{end}{ended}"


def source(**options: object) -> Driven:
    return Driven(inputs=(), **options)  # type: ignore[arg-type]  # the options of Driven


def sink() -> Driven:
    return Driven(outputs=(), is_sink=True)


# --- work -------------------------------------------------------------------------------------------------------------


def test_records_are_worked_on_then_committed_and_only_then_sent() -> None:
    subject = Driven()
    assert subject.start() == []
    assert subject.records(A, 2) == ["run 1: port 0 [0, 1]"]
    assert subject.done(1, 2) == ["commit", "grant e0:0>0 816", "send e1:0>0 0..2"]


def test_one_piece_of_work_runs_at_a_time_and_each_has_the_next_number() -> None:
    subject = Driven()
    subject.start()
    assert subject.records(A, 1) == ["run 1: port 0 [0]"]
    assert subject.records(A, 2) == []
    assert subject.records(A, 4) == []
    assert subject.done(1)[-1] == "run 2: port 0 [1, 2, 3, 4]"
    assert subject.done(2)[-1] == "run 3: port 0 [5, 6]"


def test_work_names_the_port_of_its_channel() -> None:
    subject = Driven(inputs=((A,), (B,)))
    subject.start()
    assert subject.records(B, 1) == ["run 1: port 1 [0]"]


def test_an_answer_to_other_work_than_what_runs_is_a_bug() -> None:
    subject = Driven()
    subject.start()
    subject.records(A, 1)
    with pytest.raises(AssertionError, match=r"t1\.0: work 7 ended, 1 runs"):
        subject.done(7)


def test_work_that_ends_twice_is_a_bug() -> None:
    subject = Driven()
    subject.start()
    subject.records(A, 1)
    subject.done(1)
    with pytest.raises(AssertionError, match="work 1 ended twice"):
        subject.done(1)


def test_outputs_go_to_the_target_of_each_edge() -> None:
    subject = Driven(outputs=((X, Y), (ChannelId(2, 0, 0),)))
    subject.start()
    subject.records(A, 1)
    outputs: Outputs = (((1, batch(0, 3), 24), (0, batch(0, 1), 8)), ((0, batch(0, 2), 16),))
    effects = subject.step(WorkDone(1, outputs, 4))
    assert effects[2:] == ["send e1:0>0 0..1", "send e1:0>1 0..3", "send e2:0>0 0..2"]


def test_a_peer_that_breaks_the_protocol_is_found_out() -> None:
    subject = Driven()
    subject.start()
    with pytest.raises(ChannelViolation, match="channel e0:0>0 at position 0: records from 5"):
        subject.step(BufferArrived(A, Buffer(5, 1, 8, (batch(5, 1),))))


# --- room and credit --------------------------------------------------------------------------------------------------


def without_credit() -> Driven:
    """One record of credit; 20 queued records are beyond the limit of 10."""
    subject = Driven(limits=Limits(80, ROW_BYTES, 80, 4, 1_000))
    subject.start()
    subject.records(A, 1)
    subject.done(1, 5, 5, 5, 5)
    return subject


def test_no_new_work_without_room_and_again_when_credit_comes() -> None:
    """At once: a consumer that has worked everything off need not send another grant."""
    subject = without_credit()
    assert subject.records(A, 1) == []
    assert subject.records(B, 1) == []
    assert subject.step(CreditGranted(X, 10 * ROW_BYTES)) == ["send e1:0>0 1..10"]
    effects = subject.step(CreditGranted(X, 11 * ROW_BYTES))
    assert effects[0] == "send e1:0>0 10..11"
    assert effects[1].startswith("run 2: port 0 [0")


def test_one_full_channel_of_many_takes_the_room_away() -> None:
    subject = Driven(outputs=((X, Y),), limits=Limits(80, ROW_BYTES, 80, 4, 1_000))
    subject.start()
    subject.records(A, 1)
    outputs: Outputs = ((*((1, batch(0, 10), 80) for _ in range(3)), (0, batch(0, 1), 8)),)
    subject.step(WorkDone(1, outputs, 31))
    assert subject.records(A, 1) == []


def test_backpressured_time_is_counted_as_such() -> None:
    subject = without_credit()
    subject.now_ns = 500
    subject.step(CreditGranted(X, 1))
    assert subject.subtask.statistics().backpressured_ns == 500


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_source_is_polled_as_long_as_it_has_more() -> None:
    subject = source()
    assert subject.start() == ["run 1: poll 4"]
    assert subject.done(1, 3) == ["commit", "run 2: poll 4", "send e1:0>0 0..3"]


def test_an_idle_source_is_polled_again_at_its_deadline() -> None:
    subject = source()
    subject.now_ns = 1_000
    subject.start()
    assert subject.done(1, status=SourceStatus.IDLE, wait_ns=50) == ["commit"]
    assert subject.subtask.next_deadline_ns() == 1_050
    subject.now_ns = 1_050
    assert subject.step(DeadlineReached()) == ["run 2: poll 4"]
    assert subject.subtask.next_deadline_ns() is None


def test_credit_does_not_wake_an_idle_source_before_its_time() -> None:
    subject = source()
    subject.start()
    subject.done(1, status=SourceStatus.IDLE, wait_ns=50)
    assert subject.step(CreditGranted(X, 10_000)) == []


def test_a_trigger_cuts_a_source_between_two_polls() -> None:
    subject = source()
    subject.start()
    assert subject.step(CheckpointTriggered(barrier(1))) == [], "a poll runs"
    assert subject.done(1, 3) == [
        "commit",
        "send e1:0>0 0..3",
        "send e1:0>0 barrier 1@3",
        "snapshot 1",
        "run 2: poll 4",
        "cut 1: received ; sent 3",
    ]


def test_a_trigger_cuts_an_idle_source_at_once() -> None:
    subject = source()
    subject.start()
    subject.done(1, 2, status=SourceStatus.IDLE, wait_ns=50)
    effects = subject.step(CheckpointTriggered(barrier(1)))
    assert effects == ["send e1:0>0 barrier 1@2", "snapshot 1", "cut 1: received ; sent 2"]


def test_a_trigger_that_waits_for_a_poll_can_be_cancelled() -> None:
    subject = source()
    subject.start()
    subject.step(CheckpointTriggered(barrier(1)))
    subject.step(CheckpointCancelled(1))
    assert subject.done(1) == ["commit", "run 2: poll 4"]


def test_only_sources_are_triggered() -> None:
    with pytest.raises(AssertionError, match="only sources are triggered"):
        Driven().step(CheckpointTriggered(barrier(1)))


def test_a_source_that_ended_finishes_and_goes_on_to_answer_triggers() -> None:
    subject = source()
    subject.start()
    assert subject.done(1, 2, status=SourceStatus.END) == [
        "commit",
        "run 2: finish",
        "send e1:0>0 0..2",
    ]
    assert subject.done(2, 1) == ["commit", "finished", "send e1:0>0 2..3", "send e1:0>0 end@3"]
    assert subject.step(CheckpointTriggered(barrier(1))) == [
        "send e1:0>0 barrier 1@3",
        "snapshot 1",
        "cut 1: received ; sent 3",
    ]
    assert subject.cuts[0].finished
    assert [c.ended for c in subject.cuts[0].sent] == [True]


# --- aligned checkpoints ----------------------------------------------------------------------------------------------


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


# --- unaligned checkpoints --------------------------------------------------------------------------------------------


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


# --- sinks ------------------------------------------------------------------------------------------------------------


def transaction(id: str) -> tuple[str, Transaction]:
    return "out", Transaction(id, {})


def cut_a_sink(subject: Driven, checkpoint: int, work: int, id: str) -> None:
    subject.event(A, barrier(checkpoint))
    assert subject.event(B, barrier(checkpoint)) == [f"run {work}: pre-commit {checkpoint}"]
    assert subject.done(work, transactions=(transaction(id),))[0] == "commit"


def test_a_sink_pre_commits_and_then_snapshots() -> None:
    subject = sink()
    subject.start()
    subject.event(A, barrier(1))
    assert subject.event(B, barrier(1)) == ["run 1: pre-commit 1"]
    assert subject.records(A, 1) == [], "work waits for the pre-commit"
    effects = subject.done(1, transactions=(transaction("t1"),))
    assert effects == ["commit", "snapshot 1", "run 2: port 0 [0]", "cut 1: received 0 0; sent "]
    assert subject.cuts[0].transactions == (transaction("t1"),)


def test_transactions_are_carried_over_until_their_checkpoint_is_complete() -> None:
    subject = sink()
    subject.start()
    cut_a_sink(subject, 1, 1, "t1")
    cut_a_sink(subject, 2, 2, "t2")
    subject.step(CheckpointCompleted(1))
    cut_a_sink(subject, 3, 3, "t3")
    subject.step(CheckpointCompleted(3))
    cut_a_sink(subject, 4, 4, "t4")
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
    cut_a_sink(subject, 2, 2, "t2")
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


# --- the end ----------------------------------------------------------------------------------------------------------


def test_when_all_channels_end_the_operators_finish_and_the_end_is_sent_on() -> None:
    subject = Driven()
    subject.start()
    assert subject.event(A, EndOfInput()) == []
    assert subject.records(B, 1) == ["run 1: port 0 [0]"]
    assert subject.event(B, EndOfInput()) == []
    assert subject.done(1)[-1] == "run 2: finish"
    assert subject.done(2, 2) == ["commit", "finished", "send e1:0>0 0..2", "send e1:0>0 end@2"]


def test_a_finished_subtask_relays_barriers() -> None:
    subject = Driven()
    subject.start()
    subject.event(A, EndOfInput())
    subject.event(B, EndOfInput())
    subject.done(1)
    assert subject.event(A, barrier(1)) == []
    assert subject.event(B, barrier(1)) == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "cut 1: received 0 0; sent 0",
    ]
    (cut,) = subject.cuts
    assert cut.finished
    assert [c.ended for c in (*cut.received, *cut.sent)] == [True, True, True]


def test_a_barrier_that_comes_with_the_end_is_taken_before_the_finish() -> None:
    """So the cut says that the input has ended and the operators have not finished."""
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.records(A, 1)
    subject.event(A, EndOfInput())
    subject.event(A, barrier(1))
    assert subject.done(1)[-3:] == ["snapshot 1", "run 2: finish", "cut 1: received 1; sent 0"]
    (cut,) = subject.cuts
    assert not cut.finished
    assert [c.ended for c in (*cut.received, *cut.sent)] == [True, False]


def test_finishing_waits_for_room() -> None:
    subject = without_credit()
    subject.event(A, EndOfInput())
    assert subject.event(B, EndOfInput()) == []
    assert subject.step(CreditGranted(X, 1_000 * ROW_BYTES))[-1] == "run 2: finish"


# --- restore ----------------------------------------------------------------------------------------------------------


def test_a_restored_subtask_goes_on_at_its_positions() -> None:
    subject = Driven(
        received=[ChannelPosition(*A, 5, ended=False), ChannelPosition(*B, 9, ended=True)],
        sent=[ChannelPosition(*X, 4, ended=False)],
    )
    assert subject.start() == []
    assert subject.records(A, 2) == ["run 1: port 0 [5, 6]"]
    assert subject.done(1, 3)[-1] == "send e1:0>0 4..7"
    assert subject.event(A, EndOfInput()) == ["run 2: finish"]


def test_a_subtask_restored_after_all_inputs_ended_finishes_at_once() -> None:
    ended = [ChannelPosition(*channel, 0, ended=True) for channel in (A, B)]
    assert Driven(received=ended).start() == ["run 1: finish"]


def test_a_subtask_restored_as_finished_only_relays_barriers() -> None:
    ended = [ChannelPosition(*channel, 0, ended=True) for channel in (A, B)]
    subject = Driven(received=ended, finished=True)
    assert subject.start() == []
    subject.event(A, barrier(1))
    assert subject.event(B, barrier(1))[0] == "send e1:0>0 barrier 1@0"


def test_the_state_can_be_read_as_text() -> None:
    subject = Driven(inputs=((A,),))
    subject.start()
    subject.records(A, 2)
    text = subject.subtask.describe()
    assert text.startswith("t1.0 ProcessWork finished=False")
    assert "e0:0>0 port=0 committed=0 taken=2 arrived=2" in text
    assert "e1:0>0 sent=0 tail=0" in text
