"""Watermarks in channels: they never pass a record, never break a buffer, and the slowest channel
that speaks decides.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.credit import Window
from headrace.channels.events import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Barrier,
    CheckpointMode,
    EndOfInput,
    Watermark,
)
from headrace.channels.gate import BarrierPlace, ChannelViolation, Gate, InputChannel
from headrace.channels.subpartition import QueuedEvent, Subpartition

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
OVERTAKING = Barrier(1, CheckpointMode.UNALIGNED, 0)
WAITING = Barrier(1, CheckpointMode.ALIGNED, 0)


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(count), pa.int64())})


def subpartition(*items: int | Watermark | Barrier) -> Subpartition:
    """A queue of so many records, and events."""
    subject = Subpartition(A, position=0)
    subject.grant(1 << 20)
    for item in items:
        if isinstance(item, int):
            subject.append(rows(item), item * 8)
        else:
            subject.append_event(item)
        subject.check()
    return subject


def taken(subject: Subpartition, buffer_bytes: int = 1 << 20) -> list[str]:
    found = []
    while (item := subject.take(buffer_bytes)) is not None:
        subject.check()
        found.append(shown(item))
    return found


def shown(item: Buffer | QueuedEvent) -> str:
    if isinstance(item, Buffer):
        return f"{item.first}..{item.end}"
    event = item.event
    name = str(event.time_ns) if isinstance(event, Watermark) else type(event).__name__
    return f"{name}@{item.position}"


def gate(*channels: ChannelId) -> Gate:
    opened = Gate(
        InputChannel(c, 0, position=0, ended=False, window=Window(1 << 20, None)) for c in channels
    )
    opened.open()
    return opened


def reach(subject: Gate, channel: ChannelId, time_ns: int, *, idle: bool = False) -> None:
    subject.channels[channel].event_arrived(0, Watermark(time_ns, idle))
    found = subject.next_event()
    assert found is not None
    assert isinstance(found[1], Watermark)
    found[0].reached(found[1])


# --- the producer's queue -------------------------------------------------------------------------


def test_of_watermarks_in_one_place_only_the_newest_is_sent() -> None:
    assert taken(subpartition(2, Watermark(5), Watermark(9), 1)) == ["0..3", "9@3"]
    assert taken(subpartition(Watermark(5), Watermark(9))) == ["9@0"]


def test_a_merged_buffer_takes_records_from_behind_a_watermark_which_then_follows() -> None:
    subject = subpartition(1, Watermark(5), 1, Watermark(9), 1)
    assert taken(subject, 16) == ["0..2", "9@2", "2..3"]


def test_a_watermark_is_held_up_by_one_buffer_at_most() -> None:
    subject = subpartition(2, Watermark(5), 2, Watermark(9), 2)
    assert taken(subject, 16) == ["0..2", "5@2", "2..4", "9@4", "4..6"]


def test_no_watermark_passes_a_barrier() -> None:
    assert taken(subpartition(1, Watermark(5), WAITING, 1)) == ["0..1", "5@1", "Barrier@1", "1..2"]


def test_a_barrier_overtakes_watermarks_which_are_in_flight_then() -> None:
    subject = subpartition(2, Watermark(5), 3, Watermark(9, idle=True))
    overtaken = subject.overtake(OVERTAKING)
    assert overtaken.watermarks == ((2, 5), (5, 9))
    assert [b.rows for b in overtaken.buffers] == [2, 3]
    assert taken(subject, 16)[0] == "Barrier@0"


def test_that_a_channel_is_idle_before_it_has_told_a_time_is_not_in_flight() -> None:
    assert subpartition(Watermark(MIN_WATERMARK, idle=True)).overtake(OVERTAKING).watermarks == ()


# --- the consumer's gate --------------------------------------------------------------------------


def test_the_slowest_channel_decides() -> None:
    subject = gate(A, B)
    assert subject.watermark_ns == MIN_WATERMARK
    reach(subject, A, 9)
    assert subject.watermark_ns == MIN_WATERMARK
    reach(subject, B, 4)
    assert subject.watermark_ns == 4
    reach(subject, B, 12)
    assert subject.watermark_ns == 9


def test_a_channel_does_not_go_back() -> None:
    subject = gate(A)
    reach(subject, A, 9)
    reach(subject, A, 3)
    assert subject.watermark_ns == 9


def test_an_idle_channel_holds_nothing_until_it_speaks_again() -> None:
    subject = gate(A, B)
    reach(subject, A, 9)
    reach(subject, B, 4, idle=True)
    assert subject.watermark_ns == 9
    assert not subject.idle
    subject.channels[B].buffer_arrived(Buffer.of(0, rows(1)))
    assert subject.watermark_ns == 9, "it has not been heard yet"
    assert subject.next_input(10)
    assert subject.watermark_ns == 4


def test_with_nobody_but_idle_channels_the_highest_counts() -> None:
    subject = gate(A, B)
    reach(subject, A, 9, idle=True)
    reach(subject, B, 4, idle=True)
    assert subject.idle
    assert subject.watermark_ns == 9


def test_an_ended_channel_holds_nothing_and_the_last_end_is_the_end_of_time() -> None:
    subject = gate(A, B)
    reach(subject, A, 9)
    subject.channels[B].ended = True
    assert subject.watermark_ns == 9
    subject.channels[A].ended = True
    assert subject.watermark_ns == MAX_WATERMARK
    assert not subject.idle


def test_an_end_that_was_restored_counts_when_its_records_are_replayed() -> None:
    subject = gate(A)
    reach(subject, A, 9)
    subject.channels[A].ended = True
    subject.held_ports = frozenset({0})
    assert subject.watermark_ns == 9
    subject.held_ports = frozenset()
    assert subject.watermark_ns == MAX_WATERMARK


def test_a_watermark_waits_behind_its_records_and_with_a_blocked_channel() -> None:
    subject = gate(A)
    subject.channels[A].buffer_arrived(Buffer.of(0, rows(2)))
    subject.channels[A].event_arrived(2, Watermark(7))
    assert subject.next_event() is None
    assert subject.next_input(10)
    subject.channels[A].blocked = True
    assert subject.next_event() is None
    subject.channels[A].blocked = False
    assert subject.next_event() is not None


def test_watermarks_that_queue_next_to_each_other_are_one() -> None:
    subject = gate(A)
    for time_ns in (3, 4, 5):
        subject.channels[A].event_arrived(0, Watermark(time_ns))
    assert subject.channels[A].queued_watermarks == ((0, 5),)


def test_a_barrier_knows_the_watermarks_that_came_before_it() -> None:
    channel = gate(A).channels[A]
    channel.event_arrived(0, Watermark(3))
    place = channel.overtaken_by(0)
    channel.event_arrived(0, Watermark(8))
    assert place == BarrierPlace(0, False, ((0, 3),))
    assert channel.queued_watermarks == ((0, 8),), "which came behind it, and is of the next"


def test_a_queued_barrier_is_taken_out_with_what_stands_before_it() -> None:
    channel = gate(A).channels[A]
    channel.event_arrived(0, Watermark(3))
    channel.event_arrived(0, WAITING)
    channel.event_arrived(0, Watermark(8))
    channel.event_arrived(0, EndOfInput())
    assert channel.remove_barrier(1) == BarrierPlace(0, False, ((0, 3),))
    assert channel.remove_barrier(1) is None


def test_nothing_but_a_barrier_follows_the_end() -> None:
    channel = gate(A).channels[A]
    channel.event_arrived(0, EndOfInput())
    with pytest.raises(ChannelViolation, match="Watermark after the end of input"):
        channel.event_arrived(0, Watermark(1))
    channel.event_arrived(0, WAITING)
