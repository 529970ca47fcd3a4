"""Wire format: round trips, the bytes on the wire, and everything a decoder must refuse."""

from __future__ import annotations

import pickle
import struct
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, CheckpointMode, EndOfInput, Watermark
from headrace.channels.wire import (
    HEADER_BYTES,
    BufferFrame,
    ControlFrame,
    CreditFrame,
    EventFrame,
    Frame,
    FrameDecoder,
    FrameEncoder,
    WireError,
)

KEY = b"k" * 32
CHANNEL = ChannelId(1, 2, 3)
SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.int32()))])


def schemas(edge: int) -> pa.Schema:
    return {1: SCHEMA}[edge]


def batch(rows: int, *, start: int = 0) -> pa.RecordBatch:
    keys = range(start, start + rows)
    texts = [None if key % 5 == 4 else f"text {key}" for key in keys]
    return pa.record_batch([list(keys), texts, [[key] * (key % 3) for key in keys]], schema=SCHEMA)


def encoded(encoder: FrameEncoder, *frames: Frame) -> bytes:
    return b"".join(bytes(piece) for frame in frames for piece in encoder.encode(frame))


def decoded(decoder: FrameDecoder, data: bytes) -> list[Frame]:
    """Feed whole frames; what is left over at the end must be less than one."""
    frames: list[Frame] = []
    view = memoryview(data)
    while len(view) >= HEADER_BYTES:
        header = decoder.header(view[:HEADER_BYTES])
        end = HEADER_BYTES + header.body_bytes
        if len(view) < end:
            break
        frames.append(decoder.frame(header, pa.py_buffer(view[HEADER_BYTES:end])))
        view = view[end:]
    return frames


def round_trip(*frames: Frame) -> list[Frame]:
    return decoded(FrameDecoder(KEY, schemas), encoded(FrameEncoder(KEY), *frames))


def forged(
    *,
    kind: int,
    body: bytes = b"",
    channel: ChannelId = CHANNEL,
    position: int = 0,
    size: int = 0,
    rows: int = 0,
    fingerprint: int = 0,
    sequence: int = 0,
    length: int | None = None,
) -> bytes:
    """A frame with a good MAC and digest and any content: what only a faulty peer would send."""
    digest = blake2b(body, key=KEY, digest_size=8, person=b"headrace body").digest()
    if kind == 1:
        digest = struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    fields = struct.pack(
        "<4sIIIIIQQIIQ8s",
        b"HRW1",
        kind,
        len(body) if length is None else length,
        *channel,
        position,
        size,
        rows,
        fingerprint,
        sequence,
        digest,
    )
    mac = blake2b(fields, key=KEY, digest_size=16, person=b"headrace header").digest()
    return fields + mac + body


def buffer_fields(of: pa.RecordBatch) -> tuple[bytes, int]:
    """Body and fingerprint of a good buffer frame, to be bent."""
    data = encoded(FrameEncoder(KEY), BufferFrame(CHANNEL, Buffer.of(0, of)))
    return data[HEADER_BYTES:], struct.unpack_from("<I", data, 44)[0]


def test_every_kind_of_frame_arrives_equal_and_in_order() -> None:
    frames: list[Frame] = [
        ControlFrame(b"hello"),
        EventFrame(CHANNEL, 5, Barrier(9, CheckpointMode.UNALIGNED, 123_456)),
        EventFrame(CHANNEL, 5, Barrier(10, CheckpointMode.ALIGNED, -1)),
        EventFrame(CHANNEL, 6, Barrier(11, CheckpointMode.AT_LEAST_ONCE, 0)),
        CreditFrame(CHANNEL, 1 << 40),
        BufferFrame(CHANNEL, Buffer.of(7, batch(100))),
        ControlFrame(b""),
        EventFrame(CHANNEL, 7, Watermark(-(2**63))),
        EventFrame(CHANNEL, 7, Watermark(2**63 - 1, idle=True)),
        EventFrame(CHANNEL, 1 << 40, EndOfInput()),
    ]
    assert round_trip(*frames) == frames


def test_parts_arrive_as_one_batch_with_the_size_that_was_charged() -> None:
    parts = (batch(3), batch(4, start=3), batch(5, start=7))
    [frame] = round_trip(BufferFrame(CHANNEL, Buffer(20, 12, 999, parts)))
    assert isinstance(frame, BufferFrame)
    assert frame.buffer == Buffer(20, 12, 999, (batch(12),))


def test_a_slice_sends_only_its_own_rows() -> None:
    whole = batch(100_000)
    small = Buffer.of(0, whole.slice(5_000, 10))
    pieces = FrameEncoder(KEY).encode(BufferFrame(CHANNEL, small))
    assert sum(len(piece) for piece in pieces) < 2_000
    assert round_trip(BufferFrame(CHANNEL, small)) == [
        BufferFrame(CHANNEL, Buffer(0, 10, small.size_bytes, (whole.slice(5_000, 10),)))
    ]


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string_view())]
)
def test_columns_that_cannot_stand_alone_arrive_with_their_type_and_only_their_rows(
    kind: pa.DataType,
) -> None:
    texts = [f"a text that is not inlined {row}" for row in range(5_000)]
    values = [[text] for text in texts] if pa.types.is_list(kind) else texts
    schema = pa.schema([("column", kind)])
    whole = pa.record_batch([pa.array(values, kind)], schema=schema)
    sent = Buffer(0, 20, 777, (whole.slice(100, 10), whole.slice(300, 10)))
    data = encoded(FrameEncoder(KEY), BufferFrame(CHANNEL, sent))
    frames = decoded(FrameDecoder(KEY, lambda edge: schema), data)
    assert len(data) < 4_000
    buffers = [frame.buffer for frame in frames if isinstance(frame, BufferFrame)]
    assert sum(buffer.size_bytes for buffer in buffers) == 777
    received = pa.Table.from_batches([part for buffer in buffers for part in buffer.parts])
    assert received.schema == schema
    assert received.to_pydict() == {"column": values[100:110] + values[300:310]}


def test_a_buffer_above_the_limit_leaves_as_several_frames() -> None:
    sent = Buffer(50, 1_000, 12_345, (batch(400), batch(600, start=400)))
    data = encoded(FrameEncoder(KEY, frame_bytes_max=8_192), BufferFrame(CHANNEL, sent))
    frames = decoded(FrameDecoder(KEY, schemas, frame_bytes_max=8_192), data)
    buffers = [frame.buffer for frame in frames if isinstance(frame, BufferFrame)]
    assert len(buffers) > 1
    assert sum(buffer.size_bytes for buffer in buffers) == 12_345
    assert [b.first for b in buffers] == [50, *(b.end for b in buffers[:-1])]
    assert pa.Table.from_batches([b.parts[0] for b in buffers]).to_batches() == [
        part for b in buffers for part in b.parts
    ]
    assert buffers[-1].end == sent.end


def test_a_record_above_the_limit_is_refused_by_the_sender() -> None:
    huge = pa.record_batch([[1], ["x" * 10_000], [[1]]], schema=SCHEMA)
    encoder = FrameEncoder(KEY, frame_bytes_max=8_192)
    with pytest.raises(WireError, match=r"body length of channel e1:2>3.*at most 8192"):
        encoder.encode(BufferFrame(CHANNEL, Buffer.of(0, huge)))


def test_a_dictionary_that_cannot_travel_is_refused_by_the_sender() -> None:
    numbers = pa.record_batch([pa.array([1, 1]).dictionary_encode()], names=["column"])
    with pytest.raises(WireError, match="cast it to int64"):
        FrameEncoder(KEY).encode(BufferFrame(CHANNEL, Buffer.of(0, numbers)))


def test_the_layout_of_the_header_is_the_drawn_one() -> None:
    encoder = FrameEncoder(KEY)
    encoder.encode(ControlFrame(b"first"))
    data = encoded(encoder, CreditFrame(CHANNEL, 4_096))
    no_body = struct.unpack(
        "<Q", blake2b(key=KEY, digest_size=8, person=b"headrace body").digest()
    )[0]
    fields = struct.unpack("<4sIIIIIQQIIQQ", data[:64])
    assert fields == (b"HRW1", 3, 0, 1, 2, 3, 0, 4_096, 0, 0, 1, no_body)
    assert forged(kind=3, size=4_096, sequence=1) == data


SESSION: list[Frame] = [
    ControlFrame(b"hello"),
    EventFrame(CHANNEL, 5, Barrier(9, CheckpointMode.UNALIGNED, 123_456)),
    CreditFrame(CHANNEL, 1_000),
    BufferFrame(CHANNEL, Buffer.of(7, batch(5))),
]


def test_every_flipped_bit_of_a_session_is_found() -> None:
    data = encoded(FrameEncoder(KEY), *SESSION)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(WireError):
            decoded(FrameDecoder(KEY, schemas), bytes(flipped))


def test_another_key_is_refused() -> None:
    data = encoded(FrameEncoder(b"x" * 32), ControlFrame(b"hello"))
    with pytest.raises(WireError, match="MAC in the frame at byte 0"):
        decoded(FrameDecoder(KEY, schemas), data)


@pytest.mark.parametrize("order", [[0, 0], [1], [1, 0]], ids=["replayed", "dropped", "swapped"])
def test_replayed_dropped_and_swapped_frames_are_refused(order: list[int]) -> None:
    encoder = FrameEncoder(KEY)
    frames = [encoded(encoder, ControlFrame(b"one")), encoded(encoder, ControlFrame(b"two"))]
    with pytest.raises(WireError, match="sequence"):
        decoded(FrameDecoder(KEY, schemas), b"".join(frames[index] for index in order))


def test_a_length_above_the_limit_is_refused_at_the_header() -> None:
    data = forged(kind=4, channel=ChannelId(0, 0, 0), length=0xFFFF_FFFF)
    with pytest.raises(WireError, match="body length") as caught:
        FrameDecoder(KEY, schemas).header(memoryview(data)[:HEADER_BYTES])
    assert caught.value.found == str(0xFFFF_FFFF)


def test_errors_name_channel_and_offset_and_survive_pickling() -> None:
    encoder = FrameEncoder(KEY)
    first = encoded(encoder, ControlFrame(b"one"))
    with pytest.raises(WireError) as caught:
        decoded(FrameDecoder(KEY, schemas), first + forged(kind=3, rows=1, sequence=1))
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.channel == CHANNEL
    assert error.offset == len(first)
    assert str(error) == str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        forged(kind=0),
        forged(kind=5),
        forged(kind=1, rows=0, body=b"x"),
        forged(kind=1, rows=1, size=1),
        forged(kind=2, body=b"short"),
        forged(kind=2, body=bytes(18)),
        forged(kind=2, body=struct.pack("<BBQq", 1, 4, 1, 1)),
        forged(kind=2, body=struct.pack("<BBQq", 2, 0, 1, 0)),
        forged(kind=2, body=struct.pack("<BBQq", 2, 0, 0, 0), rows=1),
        forged(kind=2, body=struct.pack("<BBQq", 3, 2, 0, 5)),
        forged(kind=2, body=struct.pack("<BBQq", 3, 0, 1, 5)),
        forged(kind=3, body=b"x"),
        forged(kind=3, position=1),
        forged(kind=3, fingerprint=1),
        forged(kind=4),
        forged(kind=4, channel=ChannelId(0, 0, 0), size=1),
        forged(kind=4, channel=ChannelId(0, 0, 0), fingerprint=1),
    ],
)
def test_headers_against_the_law_of_their_kind_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decoded(FrameDecoder(KEY, schemas), data)


def test_records_that_are_charged_nothing_are_refused() -> None:
    body, fingerprint = buffer_fields(batch(5))
    data = forged(kind=1, body=body, rows=5, size=4, fingerprint=fingerprint)
    with pytest.raises(WireError, match="header of channel"):
        decoded(FrameDecoder(KEY, schemas), data)


def test_another_number_of_rows_than_the_header_says_is_refused() -> None:
    body, fingerprint = buffer_fields(batch(5))
    data = forged(kind=1, body=body, rows=4, size=4, fingerprint=fingerprint)
    with pytest.raises(WireError, match=r"rows of channel .*: expected 4, found 5"):
        decoded(FrameDecoder(KEY, schemas), data)


def test_another_schema_than_the_edges_is_refused() -> None:
    other = pa.record_batch([[1.5]], names=["key"])
    data = encoded(FrameEncoder(KEY), BufferFrame(CHANNEL, Buffer.of(0, other)))
    with pytest.raises(WireError, match="schema of channel"):
        decoded(FrameDecoder(KEY, schemas), data)


def test_an_unknown_edge_is_refused() -> None:
    channel = ChannelId(2, 0, 0)
    data = encoded(FrameEncoder(KEY), BufferFrame(channel, Buffer.of(0, batch(1))))
    with pytest.raises(WireError, match="edge of channel"):
        decoded(FrameDecoder(KEY, schemas), data)


def test_offsets_that_point_outside_are_refused() -> None:
    good = batch(3)
    offsets = np.array([0, 6, 1_000_000, 18], dtype=np.int32)
    _, _, text = good.column(1).buffers()
    bad = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), text)
    body, fingerprint = buffer_fields(good)
    broken = pa.record_batch([good.column(0), bad, good.column(2)], schema=SCHEMA).serialize()
    data = forged(kind=1, body=broken.to_pybytes(), rows=3, size=3, fingerprint=fingerprint)
    assert body != broken
    with pytest.raises(WireError, match="record batch of channel"):
        decoded(FrameDecoder(KEY, schemas), data)


@pytest.mark.parametrize("body", [b"\xff\xff\xff\xff" + bytes(4), bytes(4)])
def test_an_end_of_stream_in_place_of_records_is_refused(body: bytes) -> None:
    _, fingerprint = buffer_fields(batch(1))
    data = forged(kind=1, body=body, rows=1, size=1, fingerprint=fingerprint)
    with pytest.raises(WireError, match="record batch of channel"):
        decoded(FrameDecoder(KEY, schemas), data)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_body_is_refused_before_it_is_inflated(codec: str) -> None:
    bomb = pa.record_batch([[0] * 1_000_000, [""] * 1_000_000, [[]] * 1_000_000], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(bomb)
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    [_, message] = list(messages)
    body = message.serialize().to_pybytes()
    _, fingerprint = buffer_fields(batch(1))
    rows = bomb.num_rows
    data = forged(kind=1, body=body, rows=rows, size=rows, fingerprint=fingerprint)
    allocated = pa.total_allocated_bytes()
    with pytest.raises(WireError, match=r"expected one that is not compressed"):
        decoded(FrameDecoder(KEY, schemas), data)
    assert pa.total_allocated_bytes() - allocated < 1_000_000


@given(st.binary(min_size=HEADER_BYTES, max_size=400))
def test_arbitrary_bytes_raise_wire_errors_only(data: bytes) -> None:
    with pytest.raises(WireError):
        decoded(FrameDecoder(KEY, schemas), data)


@given(
    st.integers(0, 6),
    st.binary(max_size=60),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2),
)
def test_any_content_under_our_key_is_a_frame_or_a_wire_error(
    kind: int, body: bytes, number: int, rows: int, edge: int
) -> None:
    _, fingerprint = buffer_fields(batch(1))
    data = forged(
        kind=kind,
        body=body,
        channel=ChannelId(edge, 0, 0),
        position=number if kind in (1, 2) else 0,
        size=number if kind in (1, 3) else 0,
        rows=rows if kind == 1 else 0,
        fingerprint=fingerprint if kind == 1 else 0,
    )
    try:
        frames = decoded(FrameDecoder(KEY, schemas), data)
    except WireError:
        return
    assert encoded(FrameEncoder(KEY), *frames) == data


@given(st.data())
def test_a_damaged_batch_under_our_key_is_a_valid_batch_or_a_wire_error(
    data: st.DataObject,
) -> None:
    body, fingerprint = buffer_fields(batch(6))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(len(body) // 2, len(body)))]
    frame = forged(kind=1, body=bytes(damaged), rows=6, size=1, fingerprint=fingerprint)
    try:
        [received] = decoded(FrameDecoder(KEY, schemas), frame)
    except WireError:
        return
    assert isinstance(received, BufferFrame)
    assert len(received.buffer.parts[0].to_pylist()) == 6
