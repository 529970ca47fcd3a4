"""Gates: records come out as they came in, however they are sliced; credit is neither made nor
lost; nobody starves.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.credit import Window
from headrace.channels.events import Barrier, CheckpointMode, EndOfInput, Watermark
from headrace.channels.gate import ChannelViolation, Gate, GateInput, InputChannel

BARRIER = Barrier(1, CheckpointMode.ALIGNED, 0)
A, B, C = (ChannelId(0, producer, 0) for producer in range(3))
WINDOW_BYTES = 1 << 20


def buffer(first: int, rows: int, size_bytes: int | None = None) -> Buffer:
    """A buffer whose records are their own positions."""
    numbers = pa.array(range(first, first + rows), pa.int64())
    return Buffer(first, rows, size_bytes or rows * 8, (pa.record_batch({"x": numbers}),))


def records(given: Buffer) -> list[int]:
    return [x for part in given.parts for x in part["x"].to_pylist()]


def channel(
    id: ChannelId, *, port: int = 0, position: int = 0, window_bytes: int = WINDOW_BYTES
) -> InputChannel:
    window = Window(window_bytes, None)
    opened = InputChannel(id, port, position=position, ended=False, window=window)
    opened.credit.opened()
    return opened


def gate_of(*ids: ChannelId) -> Gate:
    return Gate(channel(id) for id in ids)


def taken(gate: Gate, rows_max: int) -> list[str]:
    """Hand out and commit until nothing is left, as text."""
    found = []
    while given := gate.next_input(rows_max):
        found.append(" ".join(f"{g.channel} {g.buffer.first}..{g.buffer.end}" for g in given))
        gate.commit(given)
        gate.check()
    return found


def only(given: tuple[GateInput, ...]) -> GateInput:
    """The one input that was handed out."""
    (one,) = given
    return one


def test_channels_take_turns_so_that_none_starves() -> None:
    gate = gate_of(A, B, C)
    gate.channels[A].buffer_arrived(buffer(0, 4))
    gate.channels[B].buffer_arrived(buffer(0, 2))
    gate.channels[C].buffer_arrived(buffer(0, 1))
    assert taken(gate, 2) == [
        "e0:0>0 0..2",
        "e0:1>0 0..2",
        "e0:2>0 0..1 e0:0>0 2..3",
        "e0:0>0 3..4",
    ]


def test_small_buffers_are_handed_out_together() -> None:
    gate = gate_of(A)
    for first in range(5):
        gate.channels[A].buffer_arrived(buffer(first, 1))
    assert taken(gate, 3) == ["e0:0>0 0..3", "e0:0>0 3..5"]


def test_an_input_names_its_port() -> None:
    gate = Gate([channel(A, port=0), channel(B, port=1)])
    gate.channels[B].buffer_arrived(buffer(0, 1))
    given = only(gate.next_input(1))
    assert (given.channel, given.port) == (B, 1)


def test_one_hand_out_takes_from_all_channels_of_a_port() -> None:
    gate = Gate([channel(A), channel(B, port=1), channel(C)])
    for id in (A, B, C):
        gate.channels[id].buffer_arrived(buffer(0, 2))
    assert taken(gate, 10) == ["e0:0>0 0..2 e0:2>0 0..2", "e0:1>0 0..2"]


def test_a_port_whose_records_keep_coming_does_not_starve_another() -> None:
    gate = Gate([channel(A), channel(B, port=1)])
    gate.channels[B].buffer_arrived(buffer(0, 1))
    ports = []
    for first in range(4):
        gate.channels[A].buffer_arrived(buffer(first, 1))
        given = gate.next_input(10)
        ports.append(given[0].port)
        gate.commit(given)
    assert ports == [0, 1, 0, 0]


def test_records_behind_an_event_wait_until_it_is_taken() -> None:
    gate = gate_of(A)
    inputs = gate.channels[A]
    inputs.buffer_arrived(buffer(0, 2))
    inputs.event_arrived(2, BARRIER)
    inputs.buffer_arrived(buffer(2, 2))
    assert gate.next_event() is None, "records stand before it"
    assert taken(gate, 10) == ["e0:0>0 0..2"]
    assert gate.next_event() == (inputs, BARRIER)
    assert taken(gate, 10) == ["e0:0>0 2..4"]


def test_a_blocked_channel_receives_but_hands_nothing_out() -> None:
    gate = gate_of(A, B)
    gate.channels[A].blocked = True
    gate.channels[A].buffer_arrived(buffer(0, 1))
    gate.channels[A].event_arrived(1, BARRIER)
    gate.channels[B].buffer_arrived(buffer(0, 1))
    assert taken(gate, 10) == ["e0:1>0 0..1"]
    assert gate.next_event() is None
    assert gate.queued_bytes == 8
    assert gate.window_bytes == 2 * WINDOW_BYTES
    gate.channels[A].blocked = False
    assert taken(gate, 10) == ["e0:0>0 0..1"]
    assert gate.next_event() == (gate.channels[A], BARRIER)


def test_a_cut_names_what_is_committed_and_not_what_was_handed_out() -> None:
    gate = gate_of(A)
    gate.channels[A].buffer_arrived(buffer(0, 5))
    given = gate.next_input(3)
    assert gate.channels[A].committed == 0
    gate.commit(given)
    assert gate.channels[A].committed == 3


def test_a_gate_has_ended_when_every_channel_has() -> None:
    gate = Gate([channel(A), InputChannel(B, 0, position=0, ended=True, window=Window(1, None))])
    assert not gate.ended
    gate.channels[A].ended = True
    assert gate.ended


def test_a_channel_goes_on_from_a_restored_position() -> None:
    gate = Gate([channel(A, position=7)])
    gate.channels[A].buffer_arrived(buffer(7, 2))
    assert taken(gate, 10) == ["e0:0>0 7..9"]


def test_the_state_can_be_read_as_text() -> None:
    gate = gate_of(A)
    gate.channels[A].buffer_arrived(buffer(0, 2))
    gate.channels[A].blocked = True
    assert gate.describe() == "e0:0>0 port=0 committed=0 taken=0 arrived=2 blocked queue=1"


def full() -> InputChannel:
    inputs = channel(A, window_bytes=8)
    inputs.buffer_arrived(buffer(0, 1))
    return inputs


def ended() -> InputChannel:
    inputs = channel(A)
    inputs.event_arrived(0, EndOfInput())
    return inputs


@pytest.mark.parametrize(
    ("inputs", "first", "reason"),
    [
        (channel(A), 1, "channel e0:0>0 at position 0: records from 1"),
        (channel(A, position=5), 4, "at position 5: records from 4"),
        (full(), 1, "at position 1: records beyond the granted credit"),
        (ended(), 0, "at position 0: records after the end of input"),
    ],
)
def test_records_that_break_the_protocol_are_refused(
    inputs: InputChannel, first: int, reason: str
) -> None:
    with pytest.raises(ChannelViolation, match=reason):
        inputs.buffer_arrived(buffer(first, 1))


def test_events_that_break_the_protocol_are_refused() -> None:
    with pytest.raises(ChannelViolation, match="at position 0: Barrier at 1"):
        channel(A).event_arrived(1, BARRIER)
    with pytest.raises(ChannelViolation, match="EndOfInput after the end of input"):
        ended().event_arrived(0, EndOfInput())


def test_barriers_may_follow_the_end_of_input() -> None:
    inputs = ended()
    inputs.event_arrived(0, BARRIER)
    assert len(inputs.queue) == 2


def test_a_bug_in_the_order_of_commits_is_found() -> None:
    inputs = channel(A)
    with pytest.raises(AssertionError, match="committed 1"):
        inputs.commit(buffer(1, 1))


def test_credit_is_granted_half_a_window_at_a_time_while_more_is_queued() -> None:
    gate = Gate([channel(A, window_bytes=80)])
    inputs = gate.channels[A]
    for first in range(10):
        inputs.buffer_arrived(buffer(first, 1))
    grants = []
    for _ in range(10):
        grants += gate.commit(gate.next_input(1))
    assert grants == [(A, 120), (A, 160)]


def test_a_piece_takes_half_of_what_the_windows_hold() -> None:
    kib = 1024
    gate = Gate(channel(id, window_bytes=320 * kib) for id in (A, B))
    for end in gate.channels.values():
        for first in range(10):
            end.buffer_arrived(buffer(first, 1, 32 * kib))
    assert taken(gate, 100) == ["e0:0>0 0..10", "e0:1>0 0..10"]
    gate = Gate([channel(A, window_bytes=320 * kib)])
    gate.channels[A].buffer_arrived(buffer(0, 10, 320 * kib))
    assert taken(gate, 100) == ["e0:0>0 0..5", "e0:0>0 5..10"], "the other half is on its way"


def test_a_small_piece_and_a_quick_piece_are_not_cut() -> None:
    gate = Gate([channel(A, window_bytes=80)])
    gate.channels[A].buffer_arrived(buffer(0, 10))
    assert taken(gate, 100) == ["e0:0>0 0..10"]
    gate = Gate([channel(A, window_bytes=320 << 10)])
    gate.rows_quick = 8
    gate.channels[A].buffer_arrived(buffer(0, 10, 320 << 10))
    assert taken(gate, 100) == ["e0:0>0 0..8", "e0:0>0 8..10"]


def test_a_piece_that_is_worth_its_fixed_cost_takes_all() -> None:
    gate = Gate([channel(A, window_bytes=80)])
    gate.rows_worth = 20
    gate.channels[A].buffer_arrived(buffer(0, 10))
    assert taken(gate, 100) == ["e0:0>0 0..10"]


def test_a_channel_with_records_to_replay_before_it_has_no_credit() -> None:
    window = Window(80, None)
    gate = Gate([InputChannel(A, 0, position=0, ended=False, window=window), channel(B, port=1)])
    gate.held_ports = frozenset({0})
    assert gate.open() == []
    with pytest.raises(ChannelViolation, match="beyond the granted credit"):
        gate.channels[A].buffer_arrived(buffer(0, 1))
    gate.held_ports = frozenset()
    assert gate.open() == [(A, 80)]
    assert gate.open() == [], "once"


def test_waves_bring_records_to_held_ports() -> None:
    end = InputChannel(A, 0, position=0, ended=False, window=Window(80, None))
    gate = Gate([end])
    gate.held_ports = frozenset({0})
    assert gate.open(held=True) == [(A, 80)]


buffers = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=12)


@generated(
    arrivals=st.lists(buffers, min_size=1, max_size=3),
    rows_max=st.lists(st.integers(1, 12), min_size=1),
    window_bytes=st.integers(1, 120),
)
def test_any_slicing_gives_back_the_same_records_and_conserves_credit(
    arrivals: list[list[tuple[int, int]]], rows_max: list[int], window_bytes: int
) -> None:
    """A producer per channel sends while it has credit; the consumer slices as it likes."""
    ids = [ChannelId(0, producer, 0) for producer in range(len(arrivals))]
    gate = Gate(channel(id, window_bytes=window_bytes) for id in ids)
    waiting = {id: deque(sizes) for id, sizes in zip(ids, arrivals, strict=True)}
    granted = dict.fromkeys(ids, window_bytes)
    sent = dict.fromkeys(ids, 0)
    consumed = dict.fromkeys(ids, 0)
    received: dict[ChannelId, list[int]] = {id: [] for id in ids}
    turns = 0
    while True:
        for id in ids:
            while waiting[id] and sent[id] < granted[id]:
                rows, size_bytes = waiting[id].popleft()
                gate.channels[id].buffer_arrived(
                    buffer(gate.channels[id].arrived, rows, size_bytes)
                )
                sent[id] += size_bytes
        given = gate.next_input(rows_max[turns % len(rows_max)])
        if not given:
            break
        assert 0 < sum(one.buffer.rows for one in given) <= rows_max[turns % len(rows_max)]
        turns += 1
        for one in given:
            consume(gate, one, received, consumed, granted, window_bytes)
    for id, sizes in zip(ids, arrivals, strict=True):
        assert received[id] == list(range(sum(rows for rows, _ in sizes))), "lost or stuck"
        assert consumed[id] == sum(size_bytes for _, size_bytes in sizes)
        held_back = consumed[id] + window_bytes - granted[id]
        assert held_back < max(1, window_bytes // 2), "less than is worth a frame"


def consume(
    gate: Gate,
    one: GateInput,
    received: dict[ChannelId, list[int]],
    consumed: dict[ChannelId, int],
    granted: dict[ChannelId, int],
    window_bytes: int,
) -> None:
    received[one.channel] += records(one.buffer)
    limits = gate.commit([one])
    consumed[one.channel] += one.buffer.size_bytes
    for _, limit_bytes in limits:
        assert limit_bytes == consumed[one.channel] + window_bytes
        assert limit_bytes > granted[one.channel]
        granted[one.channel] = limit_bytes
    gate.check()


def test_a_batch_has_rows_of_one_port_and_goes_past_watermarks() -> None:
    gate = Gate([channel(A), channel(B), channel(C, port=1)])
    a, b, c = gate.channels.values()
    a.buffer_arrived(buffer(0, 2))
    a.event_arrived(2, Watermark(7))
    a.buffer_arrived(buffer(2, 2))
    a.event_arrived(4, Watermark(9))
    b.buffer_arrived(buffer(0, 3))
    c.buffer_arrived(buffer(0, 3))
    given = gate.next_batch(0, 6)
    assert [(g.channel, records(g.buffer)) for g in given] == [(A, [0, 1, 2, 3]), (B, [0, 1])]
    assert a.watermark_ns < 7, "no watermark overtakes a record that is worked on"
    assert list(a.queued_watermarks) == [(2, 7), (4, 9)], "a cut now holds both"
    gate.commit(given)
    assert a.watermark_ns == 7, "the last one has no record behind it, and is an event by itself"
    assert list(a.queued_watermarks) == [(4, 9)]
    assert gate.next_event() == (a, Watermark(9))
    assert [(g.channel, g.port) for g in gate.next_batch(1, 6)] == [(C, 1)]
    gate.check()


def test_a_batch_ends_at_a_barrier_and_at_the_end_of_input() -> None:
    gate = gate_of(A, B)
    a, b = gate.channels.values()
    a.buffer_arrived(buffer(0, 2))
    a.event_arrived(2, BARRIER)
    a.buffer_arrived(buffer(2, 2))
    b.buffer_arrived(buffer(0, 1))
    b.event_arrived(1, EndOfInput())
    assert [records(g.buffer) for g in gate.next_batch(0, 10)] == [[0, 1], [0]]
    assert (a.barriers, b.barriers) == (1, 0)
    place = a.remove_barrier(1)
    assert place is not None
    assert place.position == 2
    assert a.barriers == 0


def test_batches_take_the_channels_in_turn() -> None:
    gate = gate_of(A, B)
    for end in gate.channels.values():
        end.buffer_arrived(buffer(0, 6))
    order = []
    for _ in range(4):
        given = gate.next_batch(0, 3)
        order.append(only(given).channel)
        gate.commit(given)
    assert order == [A, B, A, B]


def test_a_channel_without_credit_gets_another_window() -> None:
    end = channel(A, window_bytes=16)
    assert end.extend() is None, "it has credit left"
    end.buffer_arrived(buffer(0, 3))
    assert end.extend() == 24 + 16
    assert end.extend() is None
    end.event_arrived(3, EndOfInput())
    assert end.extend() is None
