"""The order in which frames leave a connection: nothing overtakes within a channel, and control,
credit and barriers wait for no other channel's data.
"""

from __future__ import annotations

from itertools import groupby

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, CheckpointMode, EndOfInput
from headrace.channels.outbox import Outbox
from headrace.channels.wire import BufferFrame, ControlFrame, CreditFrame, EventFrame, Frame

BATCH = pa.record_batch({"n": [1]})
BARRIER = Barrier(7, CheckpointMode.UNALIGNED, 0)
BUSY, OTHER, IDLE = ChannelId(0, 0, 0), ChannelId(0, 0, 1), ChannelId(1, 0, 1)


def data(channel: ChannelId, position: int) -> BufferFrame:
    return BufferFrame(channel, Buffer.of(position, BATCH))


def barrier(channel: ChannelId, position: int) -> EventFrame:
    return EventFrame(channel, position, BARRIER)


def drained(*frames: Frame) -> list[Frame]:
    outbox = Outbox()
    for frame in frames:
        outbox.put(frame)
        outbox.check()
    taken: list[Frame] = []
    while (frame_or_none := outbox.take()) is not None:
        outbox.check()
        taken.append(frame_or_none)
    assert len(outbox) == 0
    return taken


def test_an_empty_outbox_has_no_frame() -> None:
    assert Outbox().take() is None


def test_control_and_credit_pass_waiting_data() -> None:
    waiting, control, credit = data(BUSY, 0), ControlFrame(b"trigger"), CreditFrame(BUSY, 5)
    assert drained(waiting, control, credit) == [control, credit, waiting]


def test_a_barrier_passes_data_of_other_channels() -> None:
    waiting, passing = data(BUSY, 0), barrier(IDLE, 9)
    assert drained(waiting, passing) == [passing, waiting]


def test_a_barrier_waits_for_the_data_of_its_own_channel_and_data_behind_it_for_the_barrier() -> (
    None
):
    own: list[Frame] = [
        data(BUSY, 0),
        barrier(BUSY, 1),
        data(BUSY, 1),
        EventFrame(BUSY, 2, EndOfInput()),
    ]
    assert drained(*own) == own


def test_data_behind_a_barrier_that_left_first_stays_behind_it() -> None:
    passing, behind = barrier(IDLE, 3), data(IDLE, 3)
    assert drained(data(BUSY, 0), passing, behind) == [passing, data(BUSY, 0), behind]


def test_channels_take_turns_so_that_a_barrier_waits_for_a_piece_of_each_channel() -> None:
    long = [data(BUSY, position) for position in range(4)]
    short, passing = data(OTHER, 0), barrier(OTHER, 1)
    assert drained(*long, short, passing) == [long[0], short, long[1], passing, long[2], long[3]]


channels = st.sampled_from([BUSY, OTHER, IDLE])
frames = st.one_of(
    st.builds(data, channels, st.integers(0, 9)),
    st.builds(barrier, channels, st.integers(0, 9)),
    st.builds(CreditFrame, channels, st.integers(0, 9)),
    st.builds(ControlFrame, st.binary(max_size=1)),
)


def class_of(frame: Frame) -> object:
    """Frames of one class keep their order: a channel's content, its credit, control."""
    match frame:
        case ControlFrame():
            return None
        case CreditFrame(channel):
            return "credit", channel
        case _:
            return frame.channel


def by_class(sequence: list[Frame]) -> dict[str, list[Frame]]:
    ordered = sorted(sequence, key=lambda frame: repr(class_of(frame)))
    return {repr(kind): list(group) for kind, group in groupby(ordered, key=class_of)}


@given(st.lists(st.one_of(frames, st.none())))
def test_every_frame_leaves_once_in_the_order_of_its_channel(steps: list[Frame | None]) -> None:
    """None: the connection takes a frame."""
    outbox = Outbox()
    put = [frame for frame in steps if frame is not None]
    taken: list[Frame] = []
    for step in [*steps, *[None] * len(put)]:
        if step is not None:
            outbox.put(step)
        elif (frame := outbox.take()) is not None:
            taken.append(frame)
        outbox.check()
    assert by_class(taken) == by_class(put)


@given(st.lists(frames))
def test_only_the_data_of_its_own_channel_delays_an_event(put: list[Frame]) -> None:
    outbox = Outbox()
    for frame in put:
        outbox.put(frame)
    holding = {frame.channel for frame in put if isinstance(frame, BufferFrame)}
    taken = [outbox.take() for _ in put]
    first_data = next((i for i, f in enumerate(taken) if isinstance(f, BufferFrame)), len(put))
    late = [frame for frame in taken[first_data:] if isinstance(frame, EventFrame)]
    assert all(frame.channel in holding for frame in late)
    assert not any(isinstance(f, CreditFrame | ControlFrame) for f in taken[first_data:])
