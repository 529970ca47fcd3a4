"""Room in a connection follows what its socket takes, and refused channels have turns in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import ChannelId
from headrace.channels.connection_room import ConnectionRoom, RoomLimits

MS = 1_000_000
LIMITS = RoomLimits(20 * MS, 100, 1_000)
A, B, C = (ChannelId(0, 0, consumer) for consumer in range(3))


def filled(*refused: ChannelId) -> ConnectionRoom:
    """A room of 100 bytes, all of them waiting."""
    room = ConnectionRoom(LIMITS)
    room.handed(100)
    for channel in refused:
        assert room.admit(channel) == 0
    room.check()
    return room


def test_a_buffer_may_have_half_of_the_room() -> None:
    assert ConnectionRoom(LIMITS).admit(A) == 50


def test_a_full_connection_takes_no_data_until_the_socket_has_taken_some() -> None:
    room = filled(A)
    assert room.next_turn() is None
    room.taken(30, 0, dry=False)
    assert room.next_turn() == A
    assert room.admit(A) == 50
    assert room.next_turn() is None


def test_refused_channels_have_turns_in_their_order() -> None:
    room = filled(A, B)
    room.taken(100, 0, dry=False)
    assert room.next_turn() == A
    assert room.admit(B) == 0, "B has its own turn"
    assert room.admit(C) == 0, "C waits behind B"
    assert room.admit(A)
    assert [room.next_turn(), room.next_turn(), room.next_turn()] == [B, C, None]
    assert room.admit(B)


def test_a_channel_that_fills_the_room_waits_behind_the_others() -> None:
    room = filled(A, B)
    room.taken(100, 0, dry=False)
    assert room.next_turn() == A
    room.handed(100)
    assert room.admit(A) == 0
    assert room.next_turn() is None
    room.taken(100, 0, dry=False)
    assert [room.next_turn(), room.next_turn()] == [B, A]


def test_room_follows_the_rate_while_data_waits() -> None:
    room = filled()
    room.taken(10, 0, dry=False)
    room.handed(500)
    room.taken(100, 4 * MS, dry=False)
    assert room.size_bytes == 100, "too short a look"
    room.taken(100, 8 * MS, dry=False)
    assert room.size_bytes == 200 * 20 // 8
    room.taken(100, 208 * MS, dry=False)
    assert room.size_bytes == LIMITS.floor_bytes


def test_room_doubles_when_the_socket_waits_while_a_channel_is_refused() -> None:
    room = filled(A)
    room.taken(100, 0, dry=True)
    assert room.size_bytes == 200
    for _ in range(5):
        assert room.next_turn() in (A, None)
        room.handed(room.size_bytes)
        room.admit(A)
        room.taken(room.size_bytes, 0, dry=True)
    assert room.size_bytes == LIMITS.ceiling_bytes


def test_room_that_nobody_was_refused_stays() -> None:
    room = filled()
    room.taken(100, 0, dry=True)
    assert room.size_bytes == 100


def test_time_without_waiting_data_is_no_slowness() -> None:
    room = filled(A)
    room.taken(50, 0, dry=False)
    room.taken(50, 1 * MS, dry=True)
    room.handed(60)
    room.taken(30, 1_000 * MS, dry=False)
    room.handed(100)
    room.taken(100, 1_006 * MS, dry=False)
    assert room.size_bytes == 100 * 20 // 6


@given(
    st.lists(st.tuples(st.sampled_from(["send", "took"]), st.integers(0, 2), st.integers(1, 150)))
)
def test_every_refused_channel_sends_once_the_socket_has_taken_all(
    steps: list[tuple[str, int, int]],
) -> None:
    """A producer has `queued` bytes and sends as `ResultPartition.drain` does."""
    room = ConnectionRoom(LIMITS)
    queued = dict.fromkeys((A, B, C), 0)
    now_ns = 0

    def drain(*channels: ChannelId) -> None:
        for channel in channels:
            while queued[channel] and (piece := min(room.admit(channel), queued[channel])):
                assert room.is_left
                queued[channel] -= piece
                room.handed(piece)

    def took(size_bytes: int) -> None:
        room.taken(size_bytes, now_ns, dry=size_bytes == room.waiting_bytes)
        while (channel := room.next_turn()) is not None:
            drain(channel)
        room.check()

    for kind, channel, size_bytes in steps:
        now_ns += size_bytes * MS
        if kind == "send":
            queued[(A, B, C)[channel]] += size_bytes
            drain(A, B, C)
        else:
            took(min(size_bytes, room.waiting_bytes))
        room.check()
    while any(queued.values()):
        assert room.waiting_bytes, "data waits for nothing"
        took(room.waiting_bytes)
