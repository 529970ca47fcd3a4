"""Event time of a subtask, driven by hand: what becomes work, what is passed on, what a cut
holds.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.channels.buffer import ChannelId
from headrace.channels.events import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    CheckpointMode,
    EndOfInput,
    Watermark,
)
from headrace.engine.contract.execution import EventTimeRole
from headrace.engine.contract.operators import SourceStatus
from headrace.engine.operators.work import ChainTime, WorkDone
from headrace.engine.worker.subtask_events import (
    CheckpointTriggered,
    CreditGranted,
    DeadlineReached,
    EventArrived,
    InputDrained,
)
from headrace.engine.worker.subtask_spec import EventTimeSpec
from headrace.recovery.metadata import ChannelPosition

from .driven_subtask import LIMITS, A, B, Driven, X, barrier, batch

PASSES, ACTS, MAKES = EventTimeRole.PASSES, EventTimeRole.ACTS, EventTimeRole.MAKES


def middle(role: EventTimeRole = ACTS, **more: object) -> Driven:
    subject = Driven(time=EventTimeSpec(role), **more)  # type: ignore[arg-type]  # the options of Driven
    subject.start()
    return subject


def restored(
    role: EventTimeRole, watermark_ns: int, *received: ChannelPosition, inputs: bool = True
) -> Driven:
    spec = EventTimeSpec(role, restored=True, watermark_ns=watermark_ns)
    return Driven(((A, B),) if inputs else (), time=spec, received=received)


def source(idle_after_ns: int | None = None) -> Driven:
    subject = Driven((), time=EventTimeSpec(MAKES, idle_after_ns))
    subject.start()
    return subject


def told(subject: Driven, work: int, watermark_ns: int, **more: object) -> list[str]:
    """The work ended; event time has come to `watermark_ns` at the tail."""
    pending = more.pop("pending", False) is True
    spoke = more.pop("spoke", False) is True
    return subject.done(work, time=ChainTime(watermark_ns, pending, spoke), **more)


# --- through a subtask ----------------------------------------------------------------------------


def test_a_rise_is_worked_on_and_passed_on_when_the_operators_are_done() -> None:
    subject = middle()
    assert subject.event(A, Watermark(5)) == []
    assert subject.event(B, Watermark(3)) == ["run 1: advance 3"]
    assert told(subject, 1, 3) == ["commit", "send e1:0>0 watermark 3@0"]


def test_whom_it_does_not_concern_passes_it_on_at_once() -> None:
    subject = middle(PASSES)
    subject.event(A, Watermark(5))
    assert subject.event(B, Watermark(3)) == ["send e1:0>0 watermark 3@0"]


def test_it_takes_several_slices_and_nothing_else_comes_between() -> None:
    subject = middle(inputs=((A,),))
    subject.event(A, Watermark(5))
    subject.records(A, 2)
    assert told(subject, 1, MIN_WATERMARK, pending=True) == ["commit", "run 2: advance 5"]
    assert told(subject, 2, 5) == [
        "commit",
        "run 3: port 0 [0, 1]",
        "send e1:0>0 watermark 5@0",
    ]


def test_a_newer_watermark_that_comes_meanwhile_follows() -> None:
    subject = middle(inputs=((A,),))
    subject.event(A, Watermark(5))
    subject.event(A, Watermark(9))
    assert told(subject, 1, 5) == ["commit", "run 2: advance 9", "send e1:0>0 watermark 5@0"]


def test_firing_waits_for_room() -> None:
    subject = middle(inputs=((A,),), limits=replace(LIMITS, window_bytes=8))
    subject.records(A, 1)
    subject.done(1, 100)
    assert subject.event(A, Watermark(5)) == []
    assert "run 2: advance 5" in subject.step(CreditGranted(X, 1 << 20))


def test_the_end_of_all_input_is_the_end_of_time_before_finish() -> None:
    subject = middle()
    subject.event(A, EndOfInput())
    assert subject.event(B, EndOfInput()) == [f"run 1: advance {MAX_WATERMARK}"]
    assert told(subject, 1, MAX_WATERMARK) == ["commit", "run 2: finish"]
    assert subject.done(2) == ["commit", "finished", "send e1:0>0 end@0"]


def test_the_end_of_a_source_is_the_end_of_time_for_its_chain() -> None:
    subject = source()
    assert subject.done(1, status=SourceStatus.END)[-1] == f"run 2: advance {MAX_WATERMARK}"
    assert told(subject, 2, MAX_WATERMARK) == ["commit", "run 3: finish"]


def test_time_ends_for_a_drained_source_behind_the_records_that_are_being_read() -> None:
    subject = source()
    subject.step(InputDrained())
    found = told(subject, 1, 7, spoke=True)
    assert found == ["commit", f"run 2: advance {MAX_WATERMARK}", "send e1:0>0 watermark 7@0"]
    assert told(subject, 2, MAX_WATERMARK) == ["commit", "run 3: finish"]


def test_a_generator_passes_its_watermark_on_behind_its_records() -> None:
    subject = source()
    found = told(subject, 1, 7, spoke=True)
    assert found[-1] == "send e1:0>0 watermark 7@0"
    batches = subject.step(
        WorkDone(2, (((0, batch(0, 2), 16),),), 2, time=ChainTime(9, False, True))
    )
    assert batches[-2:] == ["send e1:0>0 0..2", "send e1:0>0 watermark 9@2"]


# --- the clock ------------------------------------------------------------------------------------


def due(subject: Driven, work: int, due_ns: int | None) -> list[str]:
    """The work ended; the chain's first processing-time timer is due then."""
    return subject.done(work, time=ChainTime(MIN_WATERMARK, due_ns=due_ns))


def test_a_timer_that_is_due_becomes_work_at_its_time() -> None:
    subject = middle(inputs=((A,),))
    subject.records(A, 1)
    due(subject, 1, 50)
    assert subject.subtask.next_deadline_ns() == 50
    subject.now_ns = 49
    assert subject.step(DeadlineReached()) == []
    subject.now_ns = 50
    assert subject.step(DeadlineReached()) == [f"run 2: advance {MIN_WATERMARK}"]
    assert due(subject, 2, None) == ["commit"]
    assert subject.subtask.next_deadline_ns() is None


def test_timers_that_are_left_over_fire_before_new_records() -> None:
    subject = middle(inputs=((A,),))
    subject.records(A, 1)
    due(subject, 1, 50)
    subject.now_ns = 60
    subject.step(DeadlineReached())
    subject.records(A, 1)
    assert due(subject, 2, 55)[:2] == ["commit", f"run 3: advance {MIN_WATERMARK}"]
    assert due(subject, 3, 90)[:2] == ["commit", "run 4: port 0 [1]"]


def test_a_timer_that_is_due_while_work_runs_waits_for_it_and_not_for_the_clock() -> None:
    subject = middle(inputs=((A,),))
    subject.records(A, 1)
    due(subject, 1, 50)
    subject.records(A, 1)
    subject.now_ns = 60
    assert subject.subtask.next_deadline_ns() == 50
    assert subject.step(DeadlineReached()) == []
    assert subject.subtask.next_deadline_ns() is None
    assert f"run 3: advance {MIN_WATERMARK}" in due(subject, 2, 50)


def test_a_restored_chain_is_asked_at_once_what_is_due() -> None:
    subject = restored(ACTS, MIN_WATERMARK, *(ChannelPosition(*c, 0, False) for c in (A, B)))
    assert subject.start() == [f"run 1: advance {MIN_WATERMARK}"]
    assert due(subject, 1, 70) == ["commit"]
    assert subject.subtask.next_deadline_ns() == 70


# --- idleness -------------------------------------------------------------------------------------


def silent(subject: Driven, work: int) -> list[str]:
    return subject.done(work, status=SourceStatus.IDLE, wait_ns=1 << 40)


def test_a_source_without_records_for_so_long_is_idle_until_it_speaks() -> None:
    subject = source(idle_after_ns=100)
    told(subject, 1, 7, spoke=True)
    silent(subject, 2)
    assert subject.subtask.next_deadline_ns() == 100
    subject.now_ns = 100
    assert subject.step(DeadlineReached()) == ["send e1:0>0 idle 7@0"]
    assert subject.subtask.next_deadline_ns() == 1 << 40
    subject.now_ns = 1 << 41
    assert subject.step(DeadlineReached()) == ["run 3: poll 4"]
    assert told(subject, 3, 9, spoke=True) == [
        "commit",
        "run 4: poll 4",
        "send e1:0>0 watermark 9@0",
    ]


def test_a_source_that_works_or_waits_for_room_is_not_idle() -> None:
    subject = source(idle_after_ns=100)
    subject.now_ns = 100
    assert subject.step(DeadlineReached()) == []
    assert subject.subtask.next_deadline_ns() == 200


def test_a_subtask_is_idle_when_all_its_inputs_are() -> None:
    subject = middle(PASSES)
    subject.event(A, Watermark(5))
    assert subject.event(B, Watermark(3, idle=True)) == ["send e1:0>0 watermark 5@0"]
    assert subject.event(A, Watermark(6, idle=True)) == ["send e1:0>0 idle 6@0"]
    assert subject.event(B, Watermark(8)) == ["send e1:0>0 watermark 8@0"]


# --- cuts -----------------------------------------------------------------------------------------


def test_a_cut_names_the_watermarks_that_were_reached_and_captures_those_that_were_not() -> None:
    subject = middle()
    subject.event(A, Watermark(5))
    subject.event(B, Watermark(4))
    subject.records(A, 2)
    subject.event(A, Watermark(7))
    subject.event(A, barrier(1, CheckpointMode.UNALIGNED))
    subject.event(A, Watermark(9))
    subject.event(B, Watermark(6))
    subject.event(B, barrier(1, CheckpointMode.UNALIGNED))
    (cut,) = subject.cuts
    assert [c.watermark for c in cut.received] == [5, 4]
    assert cut.watermark_ns == 4
    runs = {run.channel: (run.first, run.watermarks) for run in cut.inflight}
    assert runs == {A: (0, ((2, 7),)), B: (0, ((0, 6),))}


def test_an_overtaken_watermark_is_captured_at_the_output() -> None:
    subject = middle(PASSES, inputs=((A,),), limits=replace(LIMITS, window_bytes=1))
    subject.records(A, 1)
    subject.done(1, 5)
    subject.event(A, Watermark(5))
    subject.event(A, barrier(1, CheckpointMode.UNALIGNED))
    (cut,) = subject.cuts
    assert [(run.side, run.watermarks) for run in cut.inflight] == [("output", ((5, 5),))]


def test_a_cut_between_slices_holds_the_watermark_that_is_not_done() -> None:
    subject = middle(inputs=((A,),))
    subject.event(A, Watermark(5))
    subject.event(A, barrier(1))
    effects = told(subject, 1, MIN_WATERMARK, pending=True)
    assert effects[:3] == ["commit", "send e1:0>0 barrier 1@0", "snapshot 1"]
    assert "run 2: advance 5" in effects
    assert subject.cuts[0].watermark_ns == 5


def test_a_source_holds_no_channel_but_its_barrier_follows_its_watermark() -> None:
    subject = source()
    told(subject, 1, 7, spoke=True)
    subject.step(CheckpointTriggered(barrier(1)))
    assert told(subject, 2, 9, spoke=True)[1:3] == [
        "send e1:0>0 watermark 9@0",
        "send e1:0>0 barrier 1@0",
    ]


# --- restore --------------------------------------------------------------------------------------


def test_restored_operators_are_told_their_watermark_once_more_before_any_record() -> None:
    subject = restored(ACTS, 5)
    assert subject.start() == ["run 1: advance 5"]
    subject.records(A, 1)
    assert told(subject, 1, 5) == ["commit", "run 2: port 0 [0]", "send e1:0>0 watermark 5@0"]


def test_one_whom_it_does_not_concern_tells_its_outputs_again() -> None:
    assert restored(PASSES, 5).start() == ["send e1:0>0 watermark 5@0"]


def test_a_restored_generator_is_asked_how_far_it_was() -> None:
    subject = restored(MAKES, MIN_WATERMARK, inputs=False)
    assert subject.start() == [f"run 1: advance {MIN_WATERMARK}"]
    assert told(subject, 1, 7) == ["commit", "run 2: poll 4", "send e1:0>0 watermark 7@0"]


def test_channels_go_on_where_they_stood() -> None:
    position = [ChannelPosition(*A, 0, False, 9), ChannelPosition(*B, 0, False, 3, True)]
    subject = restored(ACTS, 9, *position)
    subject.start()
    told(subject, 1, 9)
    assert subject.event(A, Watermark(11)) == ["run 2: advance 11"], "B was idle and still is"


def test_event_time_does_not_go_back_when_an_idle_channel_speaks() -> None:
    subject = middle()
    subject.event(B, Watermark(3, idle=True))
    subject.event(A, Watermark(9))
    told(subject, 1, 9)
    subject.step(EventArrived(ChannelId(0, 1, 0), 0, Watermark(4)))
    assert subject.event(A, Watermark(12)) == []
    assert subject.event(B, Watermark(10)) == ["run 2: advance 10"]
