"""Subpartitions: whatever the interleaving, what is taken is what was appended, within credit and
buffer size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, ChannelEvent, CheckpointMode, EndOfInput
from headrace.channels.subpartition import QueuedEvent, Subpartition

CHANNEL = ChannelId(0, 0, 0)
BYTES_PER_ROW = 8


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(start, start + rows), pa.int64())})


def barrier(checkpoint: int) -> Barrier:
    return Barrier(checkpoint, CheckpointMode.ALIGNED, 0)


def subpartition(*, position: int = 0, window_bytes: int = 1 << 20) -> Subpartition:
    opened = Subpartition(CHANNEL, position=position)
    opened.grant(window_bytes)
    return opened


def append(subject: Subpartition, *rows: int) -> None:
    for count in rows:
        subject.append(batch(subject.tail, count), count * BYTES_PER_ROW)


def taken(subject: Subpartition, buffer_bytes: int) -> list[str]:
    """Take until nothing is left, as text."""
    found = []
    while (item := subject.take(buffer_bytes)) is not None:
        if isinstance(item, Buffer):
            found.append(f"{item.first}..{item.end}")
        else:
            found.append(f"{type(item.event).__name__}@{item.position}")
    return found


def test_neighbours_are_merged_up_to_the_buffer_size() -> None:
    subject = subpartition()
    append(subject, 1, 1, 1, 1, 1)
    assert taken(subject, 2 * BYTES_PER_ROW) == ["0..2", "2..4", "4..5"]


def test_what_is_larger_than_a_buffer_is_cut() -> None:
    subject = subpartition()
    append(subject, 1, 5, 1)
    assert taken(subject, 2 * BYTES_PER_ROW) == ["0..1", "1..3", "3..5", "5..7"]


def test_a_buffer_is_cut_to_the_credit_that_is_left() -> None:
    subject = subpartition(window_bytes=3 * BYTES_PER_ROW)
    append(subject, 10)
    assert taken(subject, 1 << 20) == ["0..3"]
    subject.grant(4 * BYTES_PER_ROW)
    assert taken(subject, 1 << 20) == ["3..4"]


def test_a_merge_shares_the_batches_instead_of_copying_them() -> None:
    subject = subpartition()
    batches = [batch(0, 2), batch(2, 3)]
    for part in batches:
        subject.append(part, 8)
    merged = subject.take(1 << 20)
    assert isinstance(merged, Buffer)
    assert [id(part) for part in merged.parts] == [id(part) for part in batches]


def test_nothing_is_merged_across_an_event() -> None:
    subject = subpartition(position=5)
    append(subject, 1)
    subject.append_event(barrier(1))
    append(subject, 2)
    subject.append_event(EndOfInput())
    assert taken(subject, 1 << 20) == ["5..6", "Barrier@6", "6..8", "EndOfInput@8"]


def test_events_need_no_credit_but_wait_behind_data_that_does() -> None:
    subject = subpartition(window_bytes=1)
    subject.append_event(barrier(1))
    append(subject, 4, 4)
    subject.append_event(barrier(2))
    assert taken(subject, 1 << 20) == ["Barrier@0", "0..1"]
    subject.grant(4 * BYTES_PER_ROW)
    assert taken(subject, 1 << 20) == ["1..4"]
    subject.grant(8 * BYTES_PER_ROW)
    assert taken(subject, 1 << 20) == ["4..8", "Barrier@8"]


def test_a_merge_ends_when_the_credit_is_used_up() -> None:
    subject = subpartition(window_bytes=2 * BYTES_PER_ROW)
    append(subject, 1, 1, 1, 1)
    assert taken(subject, 1 << 20) == ["0..2"]


def test_a_lower_grant_takes_nothing_back() -> None:
    subject = subpartition(window_bytes=100)
    subject.grant(50)
    assert subject.limit_bytes == 100


def test_the_state_can_be_read_as_text() -> None:
    subject = subpartition(position=3, window_bytes=100)
    append(subject, 2)
    subject.append_event(EndOfInput())
    assert subject.describe() == "e0:0>0 sent=3 tail=5 credit=100 [3..5 EndOfInput@5]"


@pytest.mark.parametrize(("rows", "size_bytes"), [(0, 8), (0, 0)])
def test_a_buffer_of_nothing_is_a_bug(rows: int, size_bytes: int) -> None:
    with pytest.raises(AssertionError, match="e0:0>0: "):
        subpartition().append(batch(0, rows), size_bytes)


@dataclass
class Model:
    """What a subpartition is meant to be: one list of records and events, and a credit account."""

    appended: list[int | ChannelEvent] = field(default_factory=list)
    received: list[int | ChannelEvent] = field(default_factory=list)
    rows: int = 0
    sent_bytes: int = 0
    limit_bytes: int = 0


Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("event"), st.integers(1, 9)),
        st.tuples(st.just("grant"), st.integers(0, 60)),
        st.tuples(st.just("take"), st.integers(1, 80)),
    ),
    max_size=40,
)


def take_and_compare(subject: Subpartition, model: Model, buffer_bytes: int) -> None:
    """Take one item and hold it against the model's rules."""
    item = subject.take(buffer_bytes)
    waiting = model.appended[len(model.received) :]
    if item is None:
        blocked = model.sent_bytes >= model.limit_bytes
        assert not waiting or (blocked and isinstance(waiting[0], int)), "held back without reason"
    elif isinstance(item, QueuedEvent):
        assert item.position == sum(isinstance(x, int) for x in model.received)
        model.received.append(item.event)
    else:
        records = [x for part in item.parts for x in part["x"].to_pylist()]
        assert model.sent_bytes < model.limit_bytes, "took records without credit"
        assert records == list(range(item.first, item.end)), "positions are not the records' own"
        assert item.size_bytes <= buffer_bytes or len(item.parts) == 1, "merged beyond the size"
        model.sent_bytes += item.size_bytes
        model.received += records


@given(script=steps, window_bytes=st.integers(1, 100))
def test_any_interleaving_hands_out_the_same_sequence(
    script: list[Step], window_bytes: int
) -> None:
    subject = subpartition(window_bytes=window_bytes)
    model = Model(limit_bytes=window_bytes)
    for verb, number in script:
        if verb == "append":
            append(subject, number)
            model.appended += range(model.rows, model.rows + number)
            model.rows += number
        elif verb == "event":
            subject.append_event(barrier(number))
            model.appended.append(barrier(number))
        elif verb == "grant":
            subject.grant(number)
            model.limit_bytes = max(model.limit_bytes, number)
        else:
            take_and_compare(subject, model, number)
        subject.check()
        assert model.received == model.appended[: len(model.received)]
        assert subject.sent_bytes == model.sent_bytes
    subject.grant(model.limit_bytes + model.rows * BYTES_PER_ROW)
    model.limit_bytes += model.rows * BYTES_PER_ROW
    while model.received != model.appended:
        take_and_compare(subject, model, 16)
    assert subject.take(16) is None
    assert subject.queued_bytes == 0
