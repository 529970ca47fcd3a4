"""An attempt: hand-overs within the worker, frames to the others, and one gathering of cuts per
checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.connection_room import RoomLimits
from headrace.channels.events import Barrier, CheckpointMode, EndOfInput
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.wire import BufferFrame, CreditFrame, EventFrame
from headrace.engine.contract.execution import (
    EdgePlan,
    ExecutionPlan,
    OperatorPlan,
    SubtaskId,
    TaskPlan,
)
from headrace.engine.contract.operators import Operator, SourceReader, SourceStatus
from headrace.engine.operators.work import (
    Outputs,
    PollWork,
    ProcessWork,
    WorkDone,
)
from headrace.engine.worker.attempt import (
    Attempt,
    AttemptEffect,
)
from headrace.engine.worker.subtask_events import (
    DeadlineReached,
    RunWork,
    SubtaskFinished,
    TakeSnapshot,
)
from headrace.engine.worker.subtask_spec import Limits
from headrace.engine.worker.wiring import subtask_specs
from headrace.engine.worker.worker_events import (
    PersistCheckpoint,
    SendFrame,
)

SCHEMA = pa.schema([("x", pa.int64())])
LIMITS = Limits(80, 800, 800, 4, 1_000)
SOURCE, MAP = SubtaskId(0, 0), SubtaskId(1, 0)
BARRIER = Barrier(1, CheckpointMode.ALIGNED, 0)


def never_source() -> SourceReader:
    raise AssertionError("nothing is opened here")


def never_operator() -> Operator:
    raise AssertionError("nothing is opened here")


PLAN = ExecutionPlan(
    "job",
    (
        TaskPlan(0, "numbers", (OperatorPlan("numbers", source=never_source),), 2, (), (0,)),
        TaskPlan(1, "map", (OperatorPlan("map", operator=never_operator),), 2, (0,), ()),
    ),
    (EdgePlan(0, "numbers->map/0", 0, 1, 0, Rebalance(), SCHEMA),),
    128,
)


def batch(rows: int, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(start, start + rows), pa.int64())})


def attempt(slots: dict[int, int], me: int, limits: Limits = LIMITS) -> Attempt:
    """The attempt of worker `me`; `slots` is {slot: worker}."""
    made = Attempt(1, me, PLAN, slots)
    mine = [slot for slot, worker in slots.items() if worker == me]
    made.build(subtask_specs(PLAN, mine, limits, []), 0)
    return made


def of_two_workers() -> Attempt:
    """Worker 0, with slot 0, has begun; worker 7 has slot 1."""
    made = attempt({0: 0, 1: 7}, 0)
    opened = SendFrame(1, 7, CreditFrame(ChannelId(0, 1, 0), 800))
    assert made.start(0) == [opened], "nothing is read for a consumer that may have to replay"
    polling = made.frames([CreditFrame(ChannelId(0, 0, 1), 800)], 0)
    assert polling == [RunWork(SOURCE, 1, PollWork(4))]
    return made


def polled(target_rows: dict[int, int], status: SourceStatus = SourceStatus.IDLE) -> WorkDone:
    """The answer to the first poll: records for the two consumers."""
    outputs: Outputs = (tuple((t, batch(rows), rows * 8) for t, rows in target_rows.items()),)
    return WorkDone(1, outputs, sum(target_rows.values()), status=status, wait_ns=100)


def frames(effects: list[AttemptEffect]) -> list[SendFrame]:
    return [effect for effect in effects if isinstance(effect, SendFrame)]


def runs(effects: list[AttemptEffect]) -> list[RunWork]:
    return [effect for effect in effects if isinstance(effect, RunWork)]


def test_a_buffer_for_the_same_worker_is_handed_over_as_it_is() -> None:
    subject = of_two_workers()
    done = polled({0: 3})
    effects = subject.step(SOURCE, done, 0)
    assert not frames(effects)
    (run,) = runs(effects)
    assert run.subtask == MAP
    assert isinstance(run.what, ProcessWork)
    assert run.what.parts[0] is done.outputs[0][0][1], "neither copied nor serialised"


def test_a_buffer_for_another_worker_leaves_as_a_frame() -> None:
    subject = of_two_workers()
    effects = subject.step(SOURCE, polled({1: 3}), 0)
    (sent,) = frames(effects)
    assert isinstance(sent.frame, BufferFrame)
    assert (sent.epoch, sent.worker, sent.frame.channel) == (1, 7, ChannelId(0, 0, 1))
    assert (sent.frame.buffer.first, sent.frame.buffer.end) == (0, 3)
    assert not runs(effects)


def test_a_frame_finds_the_subtask_of_its_channel() -> None:
    subject = of_two_workers()
    channel = ChannelId(0, 1, 0)
    effects = subject.frames([BufferFrame(channel, Buffer(0, 2, 400, (batch(2),)))], 0)
    assert [run.subtask for run in runs(effects)] == [MAP]
    effects = subject.step(MAP, WorkDone(1), 0)
    assert SendFrame(1, 7, CreditFrame(channel, 1200)) in effects


def test_credit_within_the_worker_is_handed_over_too() -> None:
    subject = of_two_workers()
    subject.step(SOURCE, polled({0: 3}), 0)
    effects = subject.step(MAP, WorkDone(1), 0)
    assert not frames(effects)
    producer = subject.subtasks[SOURCE]
    assert "e0:0>0 sent=3 tail=3 credit=776" in producer.describe()


def test_credit_from_another_worker_reaches_the_producer() -> None:
    subject = of_two_workers()
    subject.frames([CreditFrame(ChannelId(0, 0, 1), 5_000)], 0)
    assert "e0:0>1 sent=0 tail=0 credit=5000" in subject.subtasks[SOURCE].describe()


def test_an_end_of_input_goes_both_ways() -> None:
    subject = of_two_workers()
    subject.step(SOURCE, polled({}, SourceStatus.END), 0)
    effects = subject.step(SOURCE, WorkDone(2), 0)
    assert SubtaskFinished(SOURCE) in effects
    assert SendFrame(1, 7, EventFrame(ChannelId(0, 0, 1), 0, EndOfInput())) in effects
    effects = subject.frames([EventFrame(ChannelId(0, 1, 0), 0, EndOfInput())], 0)
    assert [type(run.what).__name__ for run in runs(effects)] == ["FinishWork"]


def test_a_file_is_written_when_every_subtask_of_the_worker_has_cut() -> None:
    subject = of_two_workers()
    subject.step(SOURCE, polled({}), 0)
    effects = subject.trigger(BARRIER, None, 0)
    assert [e.subtask for e in effects if isinstance(e, TakeSnapshot)] == [SOURCE]
    assert not any(isinstance(e, PersistCheckpoint) for e in effects)
    effects = subject.frames([EventFrame(ChannelId(0, 1, 0), 0, BARRIER)], 0)
    (persist,) = (e for e in effects if isinstance(e, PersistCheckpoint))
    assert (persist.epoch, persist.checkpoint) == (1, 1)
    assert sorted(cut.subtask for cut in persist.cuts) == [SOURCE, MAP]
    assert effects.index(persist) > [isinstance(e, TakeSnapshot) for e in effects].index(True)


def test_cuts_of_a_cancelled_checkpoint_are_forgotten() -> None:
    subject = of_two_workers()
    subject.step(SOURCE, polled({}), 0)
    subject.trigger(BARRIER, None, 0)
    subject.give_up(1)
    subject.give_up(1)
    effects = subject.frames([EventFrame(ChannelId(0, 1, 0), 0, BARRIER)], 0)
    assert not any(isinstance(e, PersistCheckpoint) for e in effects)


def test_only_subtasks_whose_time_has_come_are_woken() -> None:
    subject = attempt({0: 0, 1: 0}, 0)
    subject.start(0)
    subject.step(SOURCE, polled({}), 0)
    subject.step(SubtaskId(0, 1), WorkDone(1, status=SourceStatus.IDLE, wait_ns=500), 0)
    assert subject.deadline_ns() == 100
    assert subject.wake(99) == []
    assert [run.subtask for run in runs(subject.wake(100))] == [SOURCE]
    assert subject.deadline_ns() == 500


def test_a_worker_with_all_slots_sends_no_frame() -> None:
    subject = attempt({0: 0, 1: 0}, 0)
    effects = subject.start(0)
    effects += subject.step(SOURCE, polled({0: 1, 1: 1}), 0)
    effects += subject.trigger(BARRIER, None, 0)
    effects += subject.step(SubtaskId(0, 1), WorkDone(1), 0)
    effects += subject.step(MAP, WorkDone(1), 0)
    effects += subject.step(SubtaskId(1, 1), WorkDone(1), 0)
    assert not frames(effects)
    (persist,) = (e for e in effects if isinstance(e, PersistCheckpoint))
    assert len(persist.cuts) == 4


@pytest.mark.parametrize(
    ("channel", "reason"),
    [
        (ChannelId(9, 0, 0), "frame for unknown channel e9:0>0"),
        (ChannelId(0, 0, 1), r"worker 0 does not hold subtask t1\.1"),
    ],
)
def test_a_frame_that_belongs_elsewhere_breaks_the_protocol(
    channel: ChannelId, reason: str
) -> None:
    subject = of_two_workers()
    with pytest.raises(AssertionError, match=reason):
        subject.frames([EventFrame(channel, 0, EndOfInput())], 0)


def test_a_subtask_that_is_not_here_cannot_be_stepped() -> None:
    with pytest.raises(AssertionError, match="does not hold subtask"):
        of_two_workers().step(SubtaskId(1, 1), DeadlineReached(), 0)


# --- room in the connection -----------------------------------------------------------------------

#: Room for six records; a buffer may have three.
NARROW = replace(LIMITS, connection=RoomLimits(1_000, 48, 48))


def of_two_narrowly_connected() -> Attempt:
    """Worker 0 has sent six of twenty records to worker 7."""
    made = attempt({0: 0, 1: 7}, 0, NARROW)
    made.start(0)
    made.frames([CreditFrame(ChannelId(0, 0, 1), 800)], 0)
    sent = frames(made.step(SOURCE, polled({1: 20}), 0))
    assert spans(sent) == [(0, 3), (3, 6)]
    return made


def spans(sent: list[SendFrame]) -> list[tuple[int, int]]:
    buffers = [send.frame.buffer for send in sent if isinstance(send.frame, BufferFrame)]
    return [(buffer.first, buffer.end) for buffer in buffers]


def test_data_stays_in_its_subpartition_while_the_connection_has_no_room() -> None:
    subject = of_two_narrowly_connected()
    assert spans(frames(subject.taken(7, 24, 0, dry=False))) == [(6, 9)]
    subject.check()
    assert spans(frames(subject.taken(7, 48, 0, dry=True))) == [(9, 12), (12, 15)]
    subject.check()


def test_a_barrier_overtakes_data_that_waits_for_room_and_needs_none() -> None:
    subject = of_two_narrowly_connected()
    barrier = Barrier(1, CheckpointMode.UNALIGNED, 0)
    effects = subject.trigger(barrier, None, 0)
    assert SendFrame(1, 7, EventFrame(ChannelId(0, 0, 1), 6, barrier)) in effects
    assert spans(frames(subject.taken(7, 48, 0, dry=True))) == [(6, 9), (9, 12)]


def test_an_aligned_barrier_keeps_its_place_behind_data_that_waits_for_room() -> None:
    subject = of_two_narrowly_connected()
    assert not [send for send in frames(subject.trigger(BARRIER, None, 0)) if send.worker == 7], (
        "the barrier passed the records before it"
    )
    sent: list[SendFrame] = []
    for _ in range(3):
        sent += frames(subject.taken(7, 48, 0, dry=True))
    assert spans(sent)[-1] == (18, 20)
    assert SendFrame(1, 7, EventFrame(ChannelId(0, 0, 1), 20, BARRIER)) in sent


def test_channels_within_the_worker_need_no_room() -> None:
    subject = of_two_narrowly_connected()
    subject.step(SOURCE, DeadlineReached(), 100)
    effects = subject.step(SOURCE, polled({0: 4})._replace(work=2), 100)
    assert [run.subtask for run in runs(effects)] == [MAP]


def test_credit_needs_no_room() -> None:
    subject = of_two_narrowly_connected()
    channel = ChannelId(0, 1, 0)
    subject.frames([BufferFrame(channel, Buffer(0, 2, 600, (batch(2),)))], 0)
    assert SendFrame(1, 7, CreditFrame(channel, 1_400)) in subject.step(MAP, WorkDone(1), 0)


def test_without_limit_nothing_is_counted() -> None:
    subject = of_two_workers()
    subject.step(SOURCE, polled({1: 3}), 0)
    assert subject.taken(7, 24, 0, dry=True) == []
