from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.buffer import ChannelId
from headrace.channels.credit import Window
from headrace.channels.events import EndOfInput
from headrace.channels.subpartition import QueuedEvent, Subpartition
from headrace.engine.worker.result_partition import ResultPartition

LEFT, RIGHT, OTHER = ChannelId(0, 0, 0), ChannelId(0, 0, 1), ChannelId(1, 0, 0)


def partition(*edges: tuple[ChannelId, ...], window_bytes: int = 1000) -> ResultPartition:
    def queue(channel: ChannelId) -> Subpartition:
        opened = Subpartition(channel, position=0, room=Window(100, None))
        opened.grant(window_bytes)
        return opened

    return ResultPartition([[queue(c) for c in edge] for edge in edges], room_bytes=777)


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(count), pa.int64())})


def test_outputs_go_to_the_targets_of_their_edges() -> None:
    subject = partition((LEFT, RIGHT), (OTHER,))
    most, queued = subject.append((((1, rows(2), 20), (1, rows(1), 30)), ((0, rows(4), 40),)))
    assert most == 50
    assert [(c, b.first, b.rows) for c, b in queued] == [
        (RIGHT, 0, 2),
        (RIGHT, 2, 1),
        (OTHER, 0, 4),
    ]
    drained = [(channel, item) for channel, item in subject.drain(1000, 0)]
    assert [(c, i.rows) for c, i in drained if not isinstance(i, QueuedEvent)] == [
        (RIGHT, 3),
        (OTHER, 4),
    ]
    assert subject.queued_bytes == 0


def test_outputs_for_another_number_of_edges_are_refused() -> None:
    with pytest.raises(AssertionError, match="other edges"):
        partition((LEFT,), (OTHER,)).append((((0, rows(1), 8),),))


def test_an_event_goes_to_every_channel_behind_its_records() -> None:
    subject = partition((LEFT, RIGHT))
    subject.append((((0, rows(2), 20),),))
    subject.append_event(EndOfInput())
    shown = [
        (c, i.position if isinstance(i, QueuedEvent) else i.rows) for c, i in subject.drain(1000, 0)
    ]
    assert shown == [(LEFT, 2), (LEFT, 2), (RIGHT, 0)]


def test_one_full_queue_takes_the_room_away() -> None:
    subject = partition((LEFT, RIGHT), (OTHER,), window_bytes=1)
    assert subject.has_room
    subject.append((((0, rows(1), 1), (0, rows(10), 100)), ()))
    assert not subject.has_room
    assert subject.room_bytes == 100
    assert subject.queued_bytes == 101


def test_a_subtask_without_outputs_has_room_always() -> None:
    subject = partition()
    assert subject.has_room
    assert subject.room_bytes == 777
