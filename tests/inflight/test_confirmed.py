"""What is stored already is named again: every captured record once, in order, from the right place
of the right blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.channels.buffer import Buffer, ChannelId
from headrace.inflight.confirmed import Confirmed, NamingLimits, SharedSpace
from headrace.inflight.handle import BufferHandle, ChannelStateHandle

CHANNEL = ChannelId(0, 1, 2)
#: A record is its position in the channel.
Record = int


def captured(first: int, rows: int) -> Buffer:
    return Buffer.of(first, pa.record_batch({"x": pa.array(range(first, first + rows))}))


def stored(blob_first: int, start: int, rows: int) -> BufferHandle:
    """Part of a blob that begins with the record at position `blob_first`; its path says which part
    of which.
    """
    return BufferHandle(
        path=f"chk-1/{blob_first}+{start}",
        offset=16 + blob_first,
        length=8 * (start + rows + 1),
        checksum=f"{blob_first:016x}",
        blob_rows=start + rows + 1,
        start=start,
        rows=rows,
    )


def handle(first: int, *buffers: BufferHandle, side: str = "input") -> ChannelStateHandle:
    return ChannelStateHandle(*CHANNEL, side, first, list(buffers), ended=False)


def records_of(piece: BufferHandle | list[Buffer]) -> list[Record]:
    """The records that a piece stands for."""
    if isinstance(piece, BufferHandle):
        begin = int(piece.path.removeprefix("chk-1/").partition("+")[0]) + piece.start
        return list(range(begin, begin + piece.rows))
    return [x for buffer in piece for part in buffer.parts for x in part["x"].to_pylist()]


def index(*handles: ChannelStateHandle) -> Confirmed:
    """An index that names all that is stored."""
    return Confirmed(handles, named_bytes_min=0)


def split(confirmed: Confirmed, *buffers: Buffer) -> list[BufferHandle | list[Buffer]]:
    return [
        piece
        if isinstance(piece, BufferHandle)
        else [item for item in piece if isinstance(item, Buffer)]
        for piece in confirmed.split(CHANNEL, buffers)
    ]


@st.composite
def runs(draw: st.DrawFn) -> list[ChannelStateHandle]:
    """Stored runs without overlap, in random pieces, on both sides, in no order."""
    handles = []
    position = draw(st.integers(0, 5))
    while position < 60 and draw(st.booleans()):
        first, buffers = position, []
        for _ in range(draw(st.integers(1, 3))):
            before, rows = draw(st.integers(0, min(3, position))), draw(st.integers(1, 8))
            buffers.append(stored(position - before, before, rows))
            position += rows
        side = draw(st.sampled_from(["input", "output"]))
        handles.append(handle(first, *buffers, side=side))
        position += draw(st.integers(0, 6))
    return draw(st.permutations(handles))


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    """Neighbouring buffers, as a cut captures them."""
    position, found = draw(st.integers(0, 20)), []
    for rows in draw(st.lists(st.integers(1, 12), max_size=5)):
        found.append(captured(position, rows))
        position = found[-1].end
    return found


def positions(run: Sequence[Buffer]) -> list[Record]:
    return [x for buffer in run for x in range(buffer.first, buffer.end)]


@given(known=runs(), run=buffers())
def test_the_pieces_are_the_captured_records_once_each_and_in_order(
    known: list[ChannelStateHandle], run: list[Buffer]
) -> None:
    pieces = split(Confirmed(known), *run)
    assert [x for piece in pieces for x in records_of(piece)] == positions(run)


@given(known=runs(), run=buffers())
def test_exactly_what_is_stored_is_named_and_the_rest_is_fresh(
    known: list[ChannelStateHandle], run: list[Buffer]
) -> None:
    have = {x for h in known for x in range(h.first, h.end)}
    pieces = split(index(*known), *run)
    named = [x for p in pieces if isinstance(p, BufferHandle) for x in records_of(p)]
    assert named == [x for x in positions(run) if x in have]


@given(known=runs(), run=buffers())
def test_a_named_piece_lies_within_a_blob_that_was_stored(
    known: list[ChannelStateHandle], run: list[Buffer]
) -> None:
    blobs = {b.path: b for h in known for b in h.buffers}
    for piece in split(Confirmed(known), *run):
        if isinstance(piece, BufferHandle):
            whole = blobs[piece.path]
            assert piece.rows > 0
            assert whole.start <= piece.start
            assert piece.start + piece.rows <= whole.start + whole.rows
            assert (piece.offset, piece.length) == (whole.offset, whole.length)
            assert (piece.checksum, piece.blob_rows) == (whole.checksum, whole.blob_rows)


@given(known=runs(), run=buffers())
def test_fresh_runs_are_as_long_as_they_can_be(
    known: list[ChannelStateHandle], run: list[Buffer]
) -> None:
    fresh = [isinstance(piece, list) for piece in split(Confirmed(known), *run)]
    assert all(not (a and b) for a, b in pairwise(fresh))


def test_nothing_is_known_at_first() -> None:
    run = [captured(0, 3), captured(3, 2)]
    assert split(Confirmed(), *run) == [run]
    assert split(Confirmed()) == []


def test_a_buffer_that_sticks_out_at_both_ends_is_written_around_what_is_stored() -> None:
    before, named, after = split(index(handle(4, stored(4, 0, 3))), captured(2, 8))
    assert records_of(before) == [2, 3]
    assert named == stored(4, 0, 3)
    assert records_of(after) == [7, 8, 9]


def test_a_buffer_that_was_consumed_in_part_is_named_from_where_it_stands() -> None:
    (named,) = split(index(handle(4, stored(2, 2, 6))), captured(7, 3))
    assert isinstance(named, BufferHandle)
    assert (named.start, named.rows) == (5, 3)


def test_the_two_sides_of_a_channel_go_on_from_each_other() -> None:
    """What lay in the sender's queue may have been received since."""
    known = [handle(5, stored(5, 0, 5), side="output"), handle(0, stored(0, 0, 5))]
    assert split(index(*known), captured(3, 4)) == [
        BufferHandle("chk-1/0+0", 16, 48, "0" * 16, 6, 3, 2),
        BufferHandle("chk-1/5+0", 21, 48, f"{5:016x}", 6, 0, 2),
    ]


def test_what_was_being_replayed_is_of_no_channel_of_now() -> None:
    run = captured(0, 4)
    assert split(Confirmed([handle(0, stored(0, 0, 4), side="replay")]), run) == [[run]]


def test_other_channels_do_not_count() -> None:
    run = captured(0, 4)
    pieces = Confirmed([handle(0, stored(0, 0, 4))]).split(ChannelId(0, 2, 1), [run])
    assert list(pieces) == [[run]]


def test_part_of_a_compressed_blob_stays_compressed() -> None:
    (buffer,) = [replace(stored(0, 0, 8), inflated=640)]
    (named,) = split(index(handle(0, buffer)), captured(2, 3))
    assert named == replace(buffer, start=2, rows=3)


def test_neighbouring_ranges_of_a_blob_are_named_as_one() -> None:
    blob = stored(0, 0, 9)
    known = [handle(n, replace(blob, start=n, rows=3)) for n in (0, 3, 6)]
    run = [captured(first, 1) for first in range(1, 8)]
    assert split(index(*known), *run) == [replace(blob, start=1, rows=7)]


def test_ranges_with_a_gap_between_them_are_not_joined() -> None:
    blob = stored(0, 0, 9)
    known = [handle(n, replace(blob, start=n, rows=2)) for n in (0, 4)]
    assert [records_of(p) for p in split(index(*known), captured(0, 6))] == [[0, 1], [2, 3], [4, 5]]


@given(known=runs(), run=buffers())
def test_sizes_of_small_stored_neighbours_more_than_halve(
    known: list[ChannelStateHandle], run: list[Buffer]
) -> None:
    pieces = split(Confirmed(known), *run)
    sizes = [len(records_of(piece)) for piece in pieces]
    assert all(here > 2 * behind for here, behind in pairwise(sizes))


def test_what_is_large_is_named_and_what_is_small_before_it_too() -> None:
    known = [handle(0, stored(0, 0, 2)), handle(2, stored(2, 0, 6))]
    pieces = split(Confirmed(known, named_bytes_min=40), captured(0, 8))
    assert [records_of(p) for p in pieces if isinstance(p, BufferHandle)] == [
        [0, 1],
        [2, 3, 4, 5, 6, 7],
    ]


def test_a_sparse_file_is_not_named_any_more() -> None:
    """Its size is what it was when it was first named, though only its head is alive now."""
    space = SharedSpace(NamingLimits(named_bytes_min=0, sparse_bytes_min=500, live_share_min=0.2))
    blobs = [BufferHandle("chk-1/a", 16 + 100 * n, 100, f"{n:016x}", 10, 0, 10) for n in range(10)]
    run = [captured(0, 100)]
    assert split(space.index([handle(0, *blobs)]), *run) == blobs
    assert split(space.index([handle(0, *blobs[:3])]), captured(0, 30)) == blobs[:3]
    assert split(space.index([handle(0, *blobs[:2])]), captured(0, 20)) == [[captured(0, 20)]]
