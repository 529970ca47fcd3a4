"""Event time across a restore: exact where the channels are the same, and never ahead where they
are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.assignment import NewTask, assign
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    EdgeInfo,
    SubtaskSnapshot,
    TaskInfo,
)
from headrace.recovery.redistribution import NewEdge

BY_KEY = Hash(("key",), 16)
BY_FUNCTION = Custom(lambda batch, consumers: [0] * batch.num_rows)
BUFFER = BufferHandle("chk-1/x", 16, 8, "0" * 16, 4, 0, 4)


def position(
    producer: int, consumer: int, watermark: int, *, ended: bool = False, idle: bool = False
) -> ChannelPosition:
    return ChannelPosition(0, producer, consumer, 9, ended, watermark, idle)


def checkpoint(
    *consumers: SubtaskSnapshot, finished: Sequence[bool] = (False,)
) -> CheckpointMetadata:
    """Producers into consumers, both by index, over one edge."""
    producers = [SubtaskSnapshot(0, i, f, [], [], []) for i, f in enumerate(finished)]
    return CheckpointMetadata(
        *("job", 1, 1, "unaligned", False, 0, 0, 16),
        tasks=[
            TaskInfo("a", ["a"], [], len(producers)),
            TaskInfo("b", ["b"], [], len(consumers)),
        ],
        edges=[EdgeInfo("a->b/0", 0, 1)],
        subtasks=[*producers, *consumers],
        transactions=[],
    )


def consumer(
    index: int, watermark: int, *received: ChannelPosition, **more: object
) -> SubtaskSnapshot:
    inflight = more.get("inflight", [])
    assert isinstance(inflight, list)
    return SubtaskSnapshot(
        *(1, index, more.get("finished", False) is True, [], list(received), []),
        inflight=inflight,
        watermark=watermark,
    )


def restored(
    metadata: CheckpointMetadata,
    producers: int,
    consumers: int,
    partitioner: Partitioner = BY_KEY,
) -> list[SubtaskSnapshot]:
    channels = [[(0, p) for p in range(producers)] for _ in range(consumers)]
    edge = NewEdge("a->b/0", 0, partitioner)
    tasks = [
        NewTask(TaskInfo("a", ["a"], [], producers), [[]] * producers, {}),
        NewTask(TaskInfo("b", ["b"], [], consumers), channels, {0: edge}),
    ]
    return [s for s in assign(metadata, tasks, 16) if s.task == 1]


def test_at_the_same_parallelism_every_channel_goes_on_where_it_stood() -> None:
    metadata = checkpoint(
        consumer(0, 8, position(0, 0, 7), position(1, 0, 5, idle=True)),
        consumer(1, 4, position(0, 1, 4), position(1, 1, 6)),
        finished=(False, False),
    )
    first, second = restored(metadata, 2, 2)
    assert [(p.watermark, p.idle) for p in first.received] == [(7, False), (5, True)]
    assert [(p.watermark, p.idle) for p in second.received] == [(4, False), (6, False)]
    assert (first.watermark, second.watermark) == (8, 4)


def test_at_another_parallelism_the_oldest_counts() -> None:
    metadata = checkpoint(
        consumer(0, 8, position(0, 0, 7)), consumer(1, 4, position(0, 1, 4, idle=True))
    )
    for subtask in restored(metadata, 1, 3):
        assert [(p.watermark, p.idle) for p in subtask.received] == [(4, False)]
        assert subtask.watermark == 4


def test_what_had_ended_holds_nothing_back() -> None:
    metadata = checkpoint(
        consumer(0, 8, position(0, 0, 3, ended=True), position(1, 0, 7)), finished=(True, False)
    )
    (new,) = restored(metadata, 2, 1)
    assert [p.watermark for p in new.received] == [3, 7]
    assert [p.ended for p in new.received] == [True, False]
    done = checkpoint(consumer(0, MAX_WATERMARK, position(0, 0, 3, ended=True)), finished=(True,))
    assert [s.watermark for s in restored(done, 1, 2)] == [MAX_WATERMARK, MAX_WATERMARK]


def test_a_new_operator_starts_at_the_beginning_of_time() -> None:
    metadata = checkpoint(consumer(0, 8))
    other = NewTask(TaskInfo("c", ["c"], [], 1), [[]], {})
    assert [s.watermark for s in assign(metadata, [other], 16)] == [MIN_WATERMARK]


def test_watermarks_in_flight_are_kept_where_their_channel_is_and_dropped_where_it_is_not() -> None:
    handle = ChannelStateHandle(0, 0, 0, "input", 9, [BUFFER], False, [(2, 6)])
    metadata = checkpoint(consumer(0, 5, position(0, 0, 5), inflight=[handle]))
    assert [h.watermarks for h in restored(metadata, 1, 1)[0].inflight] == [[(2, 6)]]
    assert [h.watermarks for h in restored(metadata, 2, 1)[0].inflight] == [[]]
    assert [h.watermarks for s in restored(metadata, 1, 2) for h in s.inflight] == [[], []]


def test_where_another_partitioner_gives_out_records_in_flight_the_oldest_counts() -> None:
    handle = ChannelStateHandle(0, 0, 1, "input", 9, [BUFFER], False, [(2, 6)])
    metadata = checkpoint(
        consumer(0, 8, position(0, 0, 7)),
        consumer(1, 4, position(0, 1, 4), inflight=[handle]),
    )
    metadata = replace(metadata, edges=[EdgeInfo("a->b/0", 0, 1, "custom")])
    for subtask in restored(metadata, 1, 2):
        assert [p.watermark for p in subtask.received] == [4]
        assert subtask.watermark == 4
        assert [h.watermarks for h in subtask.inflight] == [[]]
    assert [s.watermark for s in restored(metadata, 1, 2, BY_FUNCTION)] == [8, 4]


def test_an_end_with_records_left_to_replay_holds_back_what_they_may_still_bring() -> None:
    left = ChannelStateHandle(0, 0, 0, "replay", 0, [BUFFER], False)
    metadata = checkpoint(
        consumer(0, MAX_WATERMARK, position(0, 0, 3, ended=True), finished=True),
        consumer(1, 5, position(0, 1, 5, ended=True), inflight=[left]),
        finished=(True,),
    )
    for subtask in restored(metadata, 2, 2):
        assert [p.watermark for p in subtask.received] == [5, 5]
