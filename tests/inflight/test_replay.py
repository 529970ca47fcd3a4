"""Replay, driven by hand: what is asked for, handed out, and left; old channels keep their
order.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import Replay, ReplayInput, merge_sides

#: Edges by port.
PORTS = {0: 0, 1: 0, 2: 1}


def stored(name: int, rows: int, **more: object) -> BufferHandle:
    """A stored buffer whose records are `name * 100 + n`."""
    handle = BufferHandle(f"chk-1/{name}", 16, 64, "0" * 16, rows, 0, rows)
    return replace(handle, **more)


def channel(
    *buffers: BufferHandle, edge: int = 0, producer: int = 0, side: str = "input", first: int = 0
) -> ChannelStateHandle:
    return ChannelStateHandle(edge, producer, 0, side, first, list(buffers), ended=False)


def content(handle: BufferHandle) -> list[int]:
    """What a driver reads: filters are taken here as "every consumer gets the records equal to it,
    modulo the parallelism".
    """
    name = int(handle.path.removeprefix("chk-1/"))
    values = list(range(name * 100 + handle.start, name * 100 + handle.start + handle.rows))
    for skip, parallelism, consumer in handle.filters:
        values = [x for x in values[skip:] if x % parallelism == consumer]
    return values[handle.skip :]


def read_all(replay: Replay) -> int:
    """Carry out every order; returns how many there were."""
    orders = replay.wanted()
    for order in orders:
        batch = pa.record_batch({"x": pa.array(content(order.handle), pa.int64())})
        replay.was_read(order.number, batch)
    return len(orders)


def values_of(given: ReplayInput) -> list[int]:
    found = [x for part in given.parts for x in part["x"].to_pylist()]
    assert len(found) == given.rows
    return found


def drained(replay: Replay, rows_max: int = 1 << 20) -> list[int]:
    """Everything that is left, worked on piece by piece."""
    found: list[int] = []
    while replay.pending_ports:
        read_all(replay)
        given = replay.next_input(rows_max)
        if given is not None:
            found += values_of(given)
            replay.commit()
    return found


def left(replay: Replay) -> list[int]:
    """The records that the handles of `remaining` name."""
    return [x for handle in replay.remaining() for b in handle.buffers for x in content(b)]


# --- order and hand-out ---------------------------------------------------------------------------


def test_an_old_channel_is_replayed_in_order_the_receivers_part_first() -> None:
    handles = [channel(stored(1, 2), stored(2, 1)), channel(stored(3, 2), side="output")]
    assert drained(Replay(handles, PORTS)) == [100, 101, 200, 300, 301]


def test_old_channels_take_turns() -> None:
    handles = [channel(stored(1, 4)), channel(stored(2, 4), producer=1)]
    assert drained(Replay(handles, PORTS), 2) == [100, 101, 200, 201, 102, 103, 202, 203]


def test_a_piece_of_work_is_at_most_one_stored_buffer() -> None:
    replay = Replay([channel(stored(1, 3), stored(2, 3))], PORTS)
    read_all(replay)
    given = replay.next_input(100)
    assert given is not None
    assert (given.port, values_of(given)) == (0, [100, 101, 102])


def test_nothing_is_handed_out_before_it_is_read() -> None:
    replay = Replay([channel(stored(1, 1))], PORTS)
    assert replay.next_input(10) is None
    assert replay.pending_ports == {0}, "but it is still to come"


def test_a_channel_whose_buffer_is_read_does_not_wait_for_one_whose_is_not() -> None:
    handles = [channel(stored(1, 1)), channel(stored(2, 1), producer=1)]
    replay = Replay(handles, PORTS)
    _, second = replay.wanted()
    replay.was_read(second.number, pa.record_batch({"x": [200]}))
    given = replay.next_input(10)
    assert given is not None
    assert values_of(given) == [200]


def test_a_buffer_that_is_read_too_early_waits_for_the_one_before_it() -> None:
    replay = Replay([channel(stored(1, 1), stored(2, 1))], PORTS)
    first, second = replay.wanted()
    replay.was_read(second.number, pa.record_batch({"x": [200]}))
    assert replay.next_input(10) is None
    replay.was_read(first.number, pa.record_batch({"x": [100]}))
    assert drained(replay) == [100, 200]


def test_two_pieces_are_never_out_at_once() -> None:
    replay = Replay([channel(stored(1, 2))], PORTS)
    read_all(replay)
    replay.next_input(1)
    with pytest.raises(AssertionError, match="handed out twice"):
        replay.next_input(1)


def test_a_commit_needs_something_that_was_handed_out() -> None:
    with pytest.raises(AssertionError, match="nothing was handed out"):
        Replay([channel(stored(1, 2))], PORTS).commit()


# --- reading ahead --------------------------------------------------------------------------------


def test_two_buffers_of_each_old_channel_are_read_ahead_and_each_is_ordered_once() -> None:
    handles = [
        channel(*(stored(n, 1) for n in range(5))),
        channel(*(stored(n, 1) for n in range(5, 10)), producer=1),
    ]
    replay = Replay(handles, PORTS)
    assert [order.handle.path for order in replay.wanted()] == [f"chk-1/{n}" for n in (0, 1, 5, 6)]
    assert replay.wanted() == []


def test_the_next_buffer_is_ordered_when_one_is_committed() -> None:
    replay = Replay([channel(*(stored(n, 2) for n in range(4)))], PORTS)
    assert read_all(replay) == 2
    replay.next_input(10)
    assert replay.wanted() == [], "handed out is not committed"
    replay.commit()
    (order,) = replay.wanted()
    assert order.handle.path == "chk-1/2"


def test_an_order_says_whose_partitioner_the_filters_mean() -> None:
    replay = Replay([channel(stored(1, 1), edge=2)], PORTS)
    assert [order.edge for order in replay.wanted()] == [2]


def test_an_order_is_carried_out_once() -> None:
    replay = Replay([channel(stored(1, 1), stored(2, 1))], PORTS)
    first, _ = replay.wanted()
    replay.was_read(first.number, pa.record_batch({"x": [1]}))
    with pytest.raises(AssertionError, match="came twice"):
        replay.was_read(first.number, pa.record_batch({"x": [1]}))


def test_what_was_not_ordered_cannot_come() -> None:
    replay = Replay([channel(stored(1, 1))], PORTS)
    with pytest.raises(AssertionError, match="was not ordered"):
        replay.was_read(0, pa.record_batch({"x": [1]}))


# --- ports ----------------------------------------------------------------------------------------


def test_a_port_is_held_until_its_last_record_is_committed() -> None:
    replay = Replay([channel(stored(1, 1)), channel(stored(2, 1), edge=2)], PORTS)
    assert replay.pending_ports == {0, 1}
    read_all(replay)
    replay.next_input(10)
    assert replay.pending_ports == {0, 1}, "handed out is not committed"
    replay.commit()
    assert replay.pending_ports == {1}
    assert drained(replay) == [200]
    assert replay.pending_ports == frozenset()


def test_two_edges_into_one_port_hold_it_together() -> None:
    replay = Replay([channel(stored(1, 1)), channel(stored(2, 1), edge=1)], PORTS)
    read_all(replay)
    replay.next_input(10)
    replay.commit()
    assert replay.pending_ports == {0}


def test_an_end_of_input_alone_holds_nothing() -> None:
    """It is a matter of the restored channel positions."""
    replay = Replay([channel()], PORTS)
    assert replay.pending_ports == frozenset()
    assert replay.remaining() == []
    assert replay.wanted() == []


# --- what is left ---------------------------------------------------------------------------------


def test_at_first_all_is_left_as_one_replay_handle_an_old_channel() -> None:
    handles = [
        channel(stored(1, 2), first=7),
        channel(stored(2, 1), first=9, side="output"),
        channel(stored(3, 1), edge=2, producer=4),
    ]
    assert Replay(handles, PORTS).remaining() == [
        ChannelStateHandle(0, 0, 0, "replay", 0, [stored(1, 2), stored(2, 1)], ended=False),
        ChannelStateHandle(2, 4, 0, "replay", 0, [stored(3, 1)], ended=False),
    ]


def test_what_is_handed_out_is_left_until_it_is_committed() -> None:
    replay = Replay([channel(stored(1, 3))], PORTS)
    read_all(replay)
    replay.next_input(2)
    assert left(replay) == [100, 101, 102]
    replay.commit()
    assert left(replay) == [102]


def test_what_an_earlier_replay_consumed_stays_consumed() -> None:
    replay = Replay([channel(stored(1, 6, skip=2), side="replay")], PORTS)
    read_all(replay)
    replay.next_input(1)
    replay.commit()
    (handle,) = replay.remaining()
    assert handle.buffers == [stored(1, 6, skip=3)]
    assert drained(replay) == [103, 104, 105]


def test_consumed_records_are_counted_behind_the_filters() -> None:
    replay = Replay([channel(stored(1, 8, filters=[(0, 2, 1)]))], PORTS)
    read_all(replay)
    replay.next_input(1)
    replay.commit()
    (handle,) = replay.remaining()
    assert handle.buffers == [stored(1, 8, filters=[(0, 2, 1)], skip=1)]
    assert left(replay) == [103, 105, 107]


def test_buffers_of_which_nothing_passes_the_filters_are_done_when_they_are_read() -> None:
    none = stored(1, 1, filters=[(0, 2, 1)])
    replay = Replay([channel(none, stored(2, 1)), channel(none, producer=1)], PORTS)
    assert left(replay) == [200]
    read_all(replay)
    assert [h.buffers for h in replay.remaining()] == [[stored(2, 1)]]
    assert drained(replay) == [200]


def test_an_empty_buffer_behind_one_with_records_goes_with_it() -> None:
    replay = Replay([channel(stored(2, 1), stored(1, 1, filters=[(0, 2, 1)]))], PORTS)
    read_all(replay)
    assert len(replay.remaining()[0].buffers) == 2, "order within the channel is kept"
    replay.next_input(1)
    replay.commit()
    assert replay.pending_ports == frozenset()


buffers = st.builds(
    lambda name, rows, filters, skip: stored(
        name, rows, filters=filters, skip=min(skip, rows // 2 if filters else rows)
    ),
    name=st.integers(1, 50),
    rows=st.integers(1, 6),
    filters=st.sampled_from([[], [(0, 2, 0)], [(1, 2, 1)]]),
    skip=st.integers(0, 3),
)
channels = st.lists(st.lists(buffers, max_size=4), max_size=4)


@given(parts=channels, pieces=st.integers(0, 12), rows_max=st.integers(1, 4))
def test_a_replay_of_what_is_left_goes_on_where_the_first_one_stopped(
    parts: list[list[BufferHandle]], pieces: int, rows_max: int
) -> None:
    handles = [channel(*part, producer=number) for number, part in enumerate(parts)]
    replay = Replay(handles, PORTS)
    found: list[int] = []
    for _ in range(pieces):
        read_all(replay)
        given = replay.next_input(rows_max)
        if given is not None:
            found += values_of(given)
            replay.commit()
    again = Replay(replay.remaining(), PORTS)
    found += drained(again, rows_max)
    assert sorted(found) == sorted(x for part in parts for b in part for x in content(b))


@given(part=st.lists(buffers, max_size=6), rows_max=st.integers(1, 4))
def test_the_order_of_a_channel_is_kept_whatever_the_pieces(
    part: list[BufferHandle], rows_max: int
) -> None:
    assert drained(Replay([channel(*part)], PORTS), rows_max) == [
        x for buffer in part for x in content(buffer)
    ]


def test_what_an_older_attempt_left_comes_before_anything_newer_of_its_port() -> None:
    """After a rescale the same producer's newer records of a key may lie in a channel of another
    name.
    """
    older, newer = channel(stored(1, 4), side="replay"), channel(stored(2, 4))
    assert drained(Replay([replace(older, consumer=3), newer], PORTS), 2) == [
        *(100, 101, 102, 103),
        *(200, 201, 202, 203),
    ]


# --- text, and the order of handles ---------------------------------------------------------------


def test_the_state_is_described_by_old_channel() -> None:
    replay = Replay([channel(stored(1, 2), stored(2, 1)), channel(stored(3, 1), edge=2)], PORTS)
    read_all(replay)
    replay.next_input(1)
    replay.commit()
    assert replay.describe() == (
        "replay e2:0>0 stored=1 committed=0\nreplay e0:0>0 stored=2 committed=1"
    )


def test_sides_are_merged_in_the_order_of_the_channel() -> None:
    handles = [
        channel(side="output", first=5),
        channel(side="input"),
        channel(side="replay"),
        channel(side="output", producer=1),
        channel(side="input", producer=1, edge=2),
    ]
    assert [(h.edge, h.producer, h.side) for h in merge_sides(handles)] == [
        (0, 0, "replay"),
        (0, 0, "input"),
        (0, 0, "output"),
        (0, 1, "output"),
        (2, 1, "input"),
    ]


# --- watermarks -----------------------------------------------------------------------------------


def timed(handle: ChannelStateHandle, *watermarks: tuple[int, int]) -> ChannelStateHandle:
    return replace(handle, watermarks=list(watermarks))


def events(replay: Replay, rows_max: int = 1 << 20) -> list[object]:
    """Records and (producer, event time) of watermarks, in the order in which they come."""
    found: list[object] = [(c.producer, t) for c, t in replay.watermarks()]
    while replay.pending_ports:
        read_all(replay)
        given = replay.next_input(rows_max)
        if given is not None:
            found += values_of(given)
            replay.commit()
        found += [(c.producer, t) for c, t in replay.watermarks()]
    return found


@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_a_watermark_is_replayed_at_its_place(rows_max: int) -> None:
    handles = [
        timed(channel(stored(1, 3)), (0, 5), (2, 6), (3, 7)),
        timed(channel(stored(2, 2), side="output"), (1, 8)),
    ]
    expected = [(0, 5), 100, 101, (0, 6), 102, (0, 7), 200, (0, 8), 201]
    assert events(Replay(handles, PORTS), rows_max) == expected


def test_watermarks_without_records_are_replayed_too() -> None:
    assert events(Replay([timed(channel(), (0, 5))], PORTS)) == [(0, 5)]


def test_a_later_generations_watermark_waits_for_the_older_records() -> None:
    handles = [
        channel(stored(1, 2), side="replay", first=0),
        timed(channel(), (0, 5)),
    ]
    assert events(Replay(handles, PORTS)) == [100, 101, (0, 5)]


@pytest.mark.parametrize("worked", [0, 1, 2, 3, 4, 5])
def test_what_is_left_names_the_watermarks_that_are_left(worked: int) -> None:
    handles = [timed(channel(stored(1, 3), stored(2, 3)), (1, 5), (3, 6), (4, 7), (6, 8))]
    whole = events(Replay(handles, PORTS), 1)
    replay = Replay(handles, PORTS)
    found: list[object] = []
    for _ in range(worked):
        read_all(replay)
        given = replay.next_input(1)
        assert given is not None
        found += values_of(given)
        replay.commit()
        found += [(c.producer, t) for c, t in replay.watermarks()]
    assert found + events(Replay(replay.remaining(), PORTS), 1) == whole


@given(
    channels=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=40),
    ahead_bytes_max=st.integers(1, 300),
)
def test_what_is_read_ahead_is_bounded_however_many_old_channels_there_are(
    channels: list[list[int]], ahead_bytes_max: int
) -> None:
    """A consumer that has inherited those of many, after scaling down.

    Each stored buffer has 64 bytes.
    """
    handles = [
        channel(*(stored(10 * p + i, rows) for i, rows in enumerate(buffers)), producer=p)
        for p, buffers in enumerate(channels)
    ]
    replay = Replay(handles, PORTS, ahead_bytes_max=ahead_bytes_max)
    expected, found = sorted(left(replay)), []
    while replay.pending_ports:
        read_all(replay)
        assert replay.ahead_bytes <= max(64, ahead_bytes_max)
        given_now = replay.next_input(2)
        assert given_now is not None, "nothing is read, and nothing more is asked for"
        found += values_of(given_now)
        replay.commit()
    assert sorted(found) == expected
    assert replay.ahead_bytes == 0


def test_what_is_left_of_a_compressed_buffer_stays_compressed() -> None:
    replay = Replay([channel(stored(1, 4, inflated=640))], PORTS)
    read_all(replay)
    replay.next_input(1)
    replay.commit()
    (handle,) = replay.remaining()
    assert handle.buffers == [stored(1, 4, inflated=640, skip=1)]


# --- waves ----------------------------------------------------------------------------------------


def test_records_of_a_later_wave_wait_and_their_port_goes_on() -> None:
    first, second = channel(stored(1, 2)), channel(stored(2, 2), edge=2)
    replay = Replay([replace(first, wave=2), replace(second, wave=1)], PORTS, wave=2)
    assert replay.pending_ports == {PORTS[0]}
    assert drained(replay) == [100, 101]
    assert replay.next_input(1) is None
    assert [(h.edge, h.wave) for h in replay.remaining()] == [(2, 1)]
    replay.wave_began(1)
    assert replay.pending_ports == {PORTS[2]}
    assert drained(replay) == [200, 201]


def test_records_that_come_with_the_new_ones_hold_their_port_from_the_start() -> None:
    replay = Replay([channel(stored(1, 2))], PORTS, wave=1)
    assert replay.wanted() == []
    assert replay.pending_ports == {PORTS[0]}
    replay.wave_began(0)
    assert drained(replay) == [100, 101]


def test_an_earlier_wave_goes_before_an_older_generation() -> None:
    left = replace(channel(stored(1, 2), side="replay"), wave=1)
    sent = replace(channel(stored(2, 2)), wave=2)
    replay = Replay(merge_sides([left, sent]), PORTS, wave=1)
    assert drained(replay) == [200, 201, 100, 101]
