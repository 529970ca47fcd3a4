"""The subtask machine, driven by hand: work, room, sources, the end of input, and restores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import MAX_WATERMARK, EndOfInput
from headrace.channels.gate import ChannelViolation
from headrace.engine.contract.execution import EventTimeRole
from headrace.engine.contract.operators import SourceStatus
from headrace.engine.operators.work import Outputs, WorkDone
from headrace.engine.worker.subtask_events import (
    BufferArrived,
    BufferRead,
    CheckpointCancelled,
    CheckpointCompleted,
    CheckpointTriggered,
    CreditGranted,
    DeadlineReached,
    InputDrained,
    ReadBuffer,
    WaveBegan,
)
from headrace.engine.worker.subtask_spec import EventTimeSpec, Limits
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import ReadOrder
from headrace.recovery.metadata import ChannelPosition

from .driven_subtask import (
    LIMITS,
    MIDDLE,
    ROW_BYTES,
    A,
    B,
    Driven,
    X,
    Y,
    barrier,
    batch,
    source,
    without_credit,
)

# --- work -----------------------------------------------------------------------------------------


def test_records_are_worked_on_then_committed_and_only_then_sent() -> None:
    subject = Driven()
    assert subject.start() == []
    assert subject.records(A, 2) == ["run 1: port 0 [0, 1]"]
    assert subject.done(1, 2) == ["commit", "send e1:0>0 0..2"]


def test_credit_goes_back_half_a_window_at_a_time() -> None:
    subject = Driven(limits=replace(LIMITS, window_bytes=4 * ROW_BYTES))
    subject.start()
    assert subject.records(A, 1) == ["run 1: port 0 [0]"]
    assert subject.done(1) == ["commit"]
    assert subject.records(A, 1) == ["run 2: port 0 [1]"]
    assert subject.done(2) == ["commit", "grant e0:0>0 48"]


def test_inputs_are_opened_when_nothing_is_left_to_replay() -> None:
    buffer = BufferHandle("chk-1/a", 8, 1, "0" * 16, 3, 0, 3)
    stored = ChannelStateHandle(0, 0, 0, "input", 0, [buffer], ended=False)
    other = ChannelId(3, 0, 0)
    subject = Driven(inputs=((A,), (other,)), replay=[stored])
    assert subject.start()[:1] == ["grant e3:0>0 800"]
    assert subject.step(BufferRead(0, batch(0, 3))) == ["run 1: port 0 [0, 1, 2]"]
    assert subject.done(1)[-1] == "grant e0:0>0 800"


def test_a_producer_waits_until_all_its_consumers_have_opened_their_channels() -> None:
    subject = Driven(outputs=((X, Y),))
    subject.opened()
    assert subject.records(A, 1) == []
    assert subject.step(CreditGranted(X, 80)) == []
    assert subject.step(CreditGranted(Y, 80)) == ["run 1: port 0 [0]"]


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
    assert effects[1:] == ["send e1:0>0 0..1", "send e1:0>1 0..3", "send e2:0>0 0..2"]


def test_a_peer_that_breaks_the_protocol_is_found_out() -> None:
    subject = Driven()
    subject.start()
    with pytest.raises(ChannelViolation, match="channel e0:0>0 at position 0: records from 5"):
        subject.step(BufferArrived(A, Buffer(5, 1, 8, (batch(5, 1),))))


# --- room and credit ------------------------------------------------------------------------------


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
    assert subject.subtask.statistics(subject.now_ns).backpressured_ns == 500


def test_a_call_under_way_counts_as_busy_up_to_now() -> None:
    subject = Driven()
    subject.start()
    subject.records(A, 1)
    assert subject.subtask.statistics(700).busy_ns == 700
    subject.now_ns = 900
    subject.done(1, 1)
    numbers = subject.subtask.statistics(1000)
    assert (numbers.busy_ns, numbers.idle_ns) == (900, 100)


def test_operators_that_open_are_busy() -> None:
    subject = Driven()
    assert subject.subtask.statistics(300).busy_ns == 300
    subject.now_ns = 400
    subject.start()
    numbers = subject.subtask.statistics(600)
    assert (numbers.busy_ns, numbers.idle_ns) == (400, 200)


# --- sources --------------------------------------------------------------------------------------


def test_a_source_is_polled_as_long_as_it_has_more() -> None:
    subject = source()
    assert subject.start() == ["run 1: poll 4"]
    assert subject.done(1, 3) == ["commit", "run 2: poll 4", "send e1:0>0 0..3"]


def test_a_source_whose_records_all_stay_in_its_chain_is_polled_for_more_and_more() -> None:
    subject = source(outputs=(), limits=replace(LIMITS, work_rows_max=1000))
    polls = subject.start()
    for work, rows in enumerate((64, 256, 1000), 1):
        assert polls[-1] == f"run {work}: poll {rows}"
        polls = subject.done(work, rows_polled=rows, elapsed_ns=1)
    assert subject.subtask.statistics(subject.now_ns).rows_in == 64 + 256 + 1000


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


def test_a_source_that_hears_of_checkpoints_is_told_between_two_polls() -> None:
    subject = source(hears=True)
    subject.start()
    assert subject.step(CheckpointCompleted(1)) == [], "a poll runs"
    assert subject.done(1) == ["commit", "run 2: completed 1"]
    assert subject.done(2) == ["commit", "run 3: poll 4"]


def test_only_the_newest_of_several_complete_checkpoints_is_told() -> None:
    subject = source(hears=True)
    subject.start()
    subject.step(CheckpointCompleted(1))
    subject.step(CheckpointCompleted(2))
    assert subject.done(1) == ["commit", "run 2: completed 2"]
    assert subject.done(2) == ["commit", "run 3: poll 4"]


def test_no_cut_waits_until_a_source_has_heard_of_a_checkpoint() -> None:
    subject = source(hears=True)
    subject.start()
    subject.done(1, 2, status=SourceStatus.IDLE, wait_ns=50)
    assert subject.step(CheckpointCompleted(1)) == ["run 2: completed 1"]
    effects = subject.step(CheckpointTriggered(barrier(2)))
    assert effects == ["send e1:0>0 barrier 2@2", "snapshot 2", "cut 2: received ; sent 2"]


def test_a_source_that_has_ended_still_hears_of_checkpoints() -> None:
    subject = source(hears=True)
    subject.start()
    subject.done(1, status=SourceStatus.END)
    subject.done(2)
    assert subject.step(CheckpointCompleted(1)) == ["run 3: completed 1"]


def test_other_sources_hear_nothing() -> None:
    subject = source()
    subject.start()
    subject.step(CheckpointCompleted(1))
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


def test_a_drained_source_ends_behind_the_records_that_are_being_read() -> None:
    subject = source()
    subject.start()
    assert subject.step(InputDrained()) == []
    assert subject.done(1, 2) == ["commit", "run 2: finish", "send e1:0>0 0..2"]
    assert subject.done(2)[-1] == "send e1:0>0 end@2"


def test_a_source_that_waits_ends_at_once_when_it_is_drained() -> None:
    subject = source()
    subject.start()
    subject.done(1, status=SourceStatus.IDLE, wait_ns=1 << 40)
    assert subject.step(InputDrained()) == ["run 2: finish"]


def test_a_drain_changes_nothing_for_a_source_that_has_ended() -> None:
    subject = source()
    subject.start()
    subject.done(1, status=SourceStatus.END)
    subject.done(2)
    assert subject.step(InputDrained()) == []


def test_only_sources_are_drained() -> None:
    with pytest.raises(AssertionError, match="only sources are drained"):
        Driven().step(InputDrained())


# --- the end --------------------------------------------------------------------------------------


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


# --- restore --------------------------------------------------------------------------------------


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


# --- waves of a replay ----------------------------------------------------------------------------


def test_until_the_last_wave_a_source_makes_no_record() -> None:
    subject = Driven((), wave=1)
    assert subject.start() == []
    assert subject.step(WaveBegan(0)) == ["run 1: poll 4"]


def test_a_later_wave_waits_while_its_port_goes_on() -> None:
    buffer = BufferHandle("chk-1/a", 8, 1, "0" * 16, 2, 0, 2)
    later = ChannelStateHandle(0, 0, 0, "replay", 0, [buffer], ended=False, wave=1)
    subject = Driven(replay=[later], wave=2)
    assert subject.start() == []
    assert subject.records(A, 1) == ["run 1: port 0 [0]"]
    subject.done(1)
    (order,) = subject.subtask.step(WaveBegan(1), 0)
    assert order == ReadBuffer(MIDDLE, ReadOrder(0, 0, buffer))


def test_until_the_last_wave_no_timer_fires_and_no_input_ends() -> None:
    time = EventTimeSpec(EventTimeRole.ACTS, restored=True, watermark_ns=5)
    subject = Driven(wave=1, time=time)
    assert subject.start() == []
    for channel in (A, B):
        subject.event(channel, EndOfInput())
    assert subject.subtask.next_deadline_ns() is None
    assert subject.step(WaveBegan(0)) == [f"run 1: advance {MAX_WATERMARK}"]
