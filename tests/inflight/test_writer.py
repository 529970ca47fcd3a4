"""The ad hoc writer names what the newest complete checkpoint stored; buffers are joined to blobs
of bounded size.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.inflight.confirmed import NamingLimits
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.segment import Blob, SegmentBuilder, read_blob, table_from_ipc
from headrace.inflight.writer import AdHoc, Piece, write_buffers

CHANNEL = ChannelId(0, 1, 2)
#: All that is stored is named.
ALL = NamingLimits(named_bytes_min=0)


def captured(first: int, rows: int) -> Buffer:
    return Buffer.of(first, pa.record_batch({"x": pa.array(range(first, first + rows))}))


def stored(first: int, rows: int, path: str = "chk-1/a") -> ChannelStateHandle:
    buffer = BufferHandle(path, 16, 8, "0" * 16, rows, 0, rows)
    return ChannelStateHandle(*CHANNEL, "output", first, [buffer], ended=False)


def named(writer: AdHoc, checkpoint: int, buffer: Buffer) -> list[str]:
    index = writer.index(checkpoint)
    assert index is not None
    return [p.path for p in index.split(CHANNEL, [buffer]) if isinstance(p, BufferHandle)]


def test_ad_hoc_names_what_the_newest_complete_checkpoint_stored() -> None:
    writer = AdHoc(ALL)
    writer.stored(1, [stored(0, 4)])
    assert named(writer, 2, captured(0, 4)) == []
    writer.confirmed(1)
    assert named(writer, 2, captured(0, 4)) == ["chk-1/a"]
    writer.stored(2, [stored(2, 4, "chk-2/a")])
    writer.confirmed(2)
    assert named(writer, 3, captured(0, 4)) == ["chk-2/a"]


def test_ad_hoc_names_what_a_given_up_checkpoint_stored_until_a_newer_one_is_complete() -> None:
    writer = AdHoc(ALL)
    writer.stored(1, [stored(0, 4)])
    writer.confirmed(1)
    writer.stored(2, [stored(0, 4, "chk-2/a")])
    assert named(writer, 3, captured(0, 4)) == ["chk-1/a"], "it may still be deleted"
    writer.given_up(2)
    assert named(writer, 3, captured(0, 4)) == ["chk-2/a"]
    writer.stored(4, [stored(0, 4, "chk-4/a")])
    writer.confirmed(4)
    assert named(writer, 5, captured(0, 4)) == ["chk-4/a"]
    writer.given_up(3)
    writer.stored(3, [stored(0, 4, "chk-3/a")])
    assert named(writer, 5, captured(0, 4)) == ["chk-4/a"], "a newer one is complete"


def test_what_is_stored_late_for_a_given_up_checkpoint_is_named() -> None:
    writer = AdHoc(ALL)
    writer.given_up(1)
    assert named(writer, 2, captured(0, 4)) == []
    writer.stored(1, [stored(0, 4)])
    assert named(writer, 2, captured(0, 4)) == ["chk-1/a"]


def test_ad_hoc_never_names_what_a_given_up_checkpoint_stored() -> None:
    writer = AdHoc(ALL)
    writer.stored(1, [stored(0, 4)])
    writer.stored(2, [stored(0, 4, "chk-2/a")])
    writer.confirmed(2)
    assert named(writer, 3, captured(0, 4)) == ["chk-2/a"]
    writer.confirmed(3)
    assert named(writer, 4, captured(0, 4)) == []


def test_ad_hoc_logs_nothing() -> None:
    writer = AdHoc(ALL)
    writer.log(CHANNEL, captured(0, 4))
    assert writer.next_piece(dict) is None
    with pytest.raises(AssertionError, match="nobody"):
        writer.piece_written(Piece(1, 0, ()), ())


def test_neighbours_are_joined_up_to_the_size_of_a_blob() -> None:
    segment = SegmentBuilder()
    small, large = captured(0, 10), captured(30, 100_000)
    handles = write_buffers(segment, "chk-1/a", [small, captured(10, 20), large, large])
    assert [(h.rows, h.start, h.path) for h in handles] == [
        (100_030, 0, "chk-1/a"),
        (100_000, 0, "chk-1/a"),
    ]
    data = b"".join(segment.parts())
    first = Blob(handles[0].offset, handles[0].length, handles[0].checksum)
    table = table_from_ipc(read_blob(lambda o, n: data[o : o + n], first))
    assert table["x"].to_pylist()[:40] == list(range(40))
