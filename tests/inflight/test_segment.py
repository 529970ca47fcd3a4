"""Segments: blobs come back as they went in, or not at all; tables carry no code."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.inflight.segment import (
    HEADER_BYTES,
    Blob,
    CorruptBlob,
    InvalidTable,
    SegmentBuilder,
    check_header,
    checksum_of,
    deflate,
    inflate,
    read_blob,
    schema_from_ipc,
    table_from_ipc,
    table_to_ipc,
)

#: A segment with the blobs b"headrace", b"" and eight zeros, as version 1 wrote it. Never
#: regenerate it.
GOLDEN = Path(__file__).parent / "testdata" / "v1.segment"
GOLDEN_BLOBS = [
    Blob(16, 8, "cb57e9962b2bf0aa"),
    Blob(24, 0, "2d06800538d394c2"),
    Blob(24, 8, "c77b3abb6f87acd9"),
]

TABLE = pa.table(
    {
        "__key_group": pa.array([0, 1, 1], pa.uint16()),
        "customer": ["anna", None, "zoë"],
        "tags": [["a"], [], None],
        "level": pa.array(["low", "high", "low"]).dictionary_encode(),
    }
)


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


def built(*pieces: bytes) -> tuple[bytes, list[Blob]]:
    builder = SegmentBuilder()
    blobs = [builder.append(piece) for piece in pieces]
    data = b"".join(builder.parts())
    assert len(data) == builder.size_bytes
    return data, blobs


def stream(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_the_format_is_the_one_of_version_one() -> None:
    assert built(b"headrace", b"", bytes(8)) == (GOLDEN.read_bytes(), GOLDEN_BLOBS)


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_blobs_come_back_as_they_went_in(pieces: list[bytes]) -> None:
    data, blobs = built(*pieces)
    check_header(reader(data))
    assert [read_blob(reader(data), blob) for blob in blobs] == pieces


def test_bytes_views_and_arrow_buffers_are_alike() -> None:
    builder = SegmentBuilder()
    assert builder.is_empty
    whole = b"01234567"
    wide = memoryview(whole).cast("I")
    for piece in (whole, memoryview(whole), wide, pa.py_buffer(whole)):
        blob = builder.append(piece)
        assert (blob.length, blob.checksum) == (8, checksum_of(whole))
    assert not builder.is_empty
    assert b"".join(builder.parts())[HEADER_BYTES:] == whole * 4


def test_every_flipped_bit_is_found() -> None:
    data, blobs = built(b"first", b"second")
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBlob):
            check_header(reader(bytes(damaged)))
            for blob in blobs:
                read_blob(reader(bytes(damaged)), blob)


def test_every_truncation_is_found() -> None:
    data, blobs = built(b"first", b"second")
    for length in range(len(data)):
        with pytest.raises(CorruptBlob):
            check_header(reader(data[:length]))
            for blob in blobs:
                read_blob(reader(data[:length]), blob)


def test_another_version_is_refused() -> None:
    data = struct.pack("<8sII", b"\x89HRSEG\r\n", 2, 0)
    with pytest.raises(CorruptBlob, match="segment header"):
        check_header(reader(data))


@pytest.mark.parametrize(
    "blob",
    [
        Blob(15, 1, "0" * 16),
        Blob(-1, 1, "0" * 16),
        Blob(16, -1, "0" * 16),
        Blob(16, 1001, "0" * 16),
        Blob(16, 1, "0" * 15),
        Blob(16, 1, "F" * 16),
    ],
)
def test_an_impossible_blob_is_refused_before_anything_is_read(blob: Blob) -> None:
    def forbidden(offset: int, length: int) -> bytes:
        raise AssertionError("read")

    with pytest.raises(CorruptBlob):
        read_blob(forbidden, blob, bytes_max=1000)


def test_a_corrupt_blob_says_where_what_was_expected_and_what_was_found() -> None:
    data, (blob,) = built(b"first")
    with pytest.raises(CorruptBlob) as error:
        read_blob(reader(data.replace(b"first", b"worst")), blob)
    assert error.value.offset == 16
    assert str(error.value) == (
        f"offset 16: expected xxh3 {checksum_of(b'first')}, found xxh3 {checksum_of(b'worst')}"
    )


def test_a_table_comes_back_as_it_went_in() -> None:
    data = b"".join(table_to_ipc(TABLE))
    assert table_from_ipc(data).equals(TABLE)
    assert table_from_ipc(data).schema == TABLE.schema
    assert len(data) % 8 == 0


def test_an_empty_table_keeps_its_schema() -> None:
    empty = TABLE.slice(0, 0)
    assert table_from_ipc(b"".join(table_to_ipc(empty))).schema == TABLE.schema


def test_a_slice_is_written_without_what_surrounds_it() -> None:
    table = pa.table({"x": range(10_000)})
    assert sum(map(len, table_to_ipc(table.slice(5_000, 1)))) < 1_000


UUIDS = pa.array([], pa.uuid())


@pytest.mark.parametrize(
    "column",
    [
        UUIDS,
        pa.ListArray.from_arrays(pa.array([0], pa.int32()), UUIDS),
        pa.StructArray.from_arrays([UUIDS], ["id"]),
        pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), UUIDS),
    ],
    ids=["plain", "list", "struct", "dictionary"],
)
def test_extension_types_are_neither_written_nor_read(column: pa.Array) -> None:
    table = pa.table({"id": column})
    with pytest.raises(InvalidTable, match="extension type"):
        table_to_ipc(table)
    with pytest.raises(InvalidTable, match="extension types"):
        table_from_ipc(stream(table))


def test_the_deserialiser_of_a_registered_extension_type_does_not_run() -> None:
    ran: list[bytes] = []

    class Evil(pa.ExtensionType):  # type: ignore[misc]  # pyarrow ships no types
        def __init__(self) -> None:
            super().__init__(pa.int64(), "headrace.evil")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Evil:
            ran.append(serialized)
            return cls()

    pa.register_extension_type(Evil())
    try:
        data = stream(pa.schema([("x", Evil())]).empty_table())
        ran.clear()
        with pytest.raises(InvalidTable, match="extension types"):
            table_from_ipc(data)
        assert ran == []
    finally:
        pa.unregister_extension_type("headrace.evil")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_bodies_are_refused(codec: str) -> None:
    bomb = pa.table({"x": pa.array([0] * 100_000, pa.int64())})
    with pytest.raises(InvalidTable, match="compressed record batch"):
        table_from_ipc(stream(bomb, compression=codec))


def test_compressed_dictionaries_are_refused() -> None:
    table = pa.table({"x": pa.array(["a" * 10_000]).dictionary_encode()})
    with pytest.raises(InvalidTable, match="compressed dictionary"):
        table_from_ipc(stream(table, compression="lz4"))


def test_limits_on_bytes_and_rows_are_kept() -> None:
    data = b"".join(table_to_ipc(TABLE))
    with pytest.raises(InvalidTable, match="the limit is 100"):
        table_from_ipc(data, bytes_max=100)
    with pytest.raises(InvalidTable, match="more than 2 rows"):
        table_from_ipc(data, rows_max=2)


def test_rows_without_bytes_are_limited() -> None:
    data = b"".join(table_to_ipc(pa.table({"x": pa.nulls(1000)})))
    with pytest.raises(InvalidTable, match="more than 999 rows"):
        table_from_ipc(data, rows_max=999)


def test_a_table_that_only_a_full_validation_finds_invalid_is_refused() -> None:
    data = b"".join(table_to_ipc(pa.table({"x": ["ab", "cd"]})))
    text = data.rindex(b"abcd")
    with pytest.raises(InvalidTable, match="UTF8"):
        table_from_ipc(data[:text] + b"\xff\xff" + data[text + 2 :])


def test_every_truncation_of_a_table_is_found() -> None:
    data = b"".join(table_to_ipc(TABLE))
    for length in range(len(data)):
        with pytest.raises(InvalidTable):
            table_from_ipc(data[:length])


def test_bytes_behind_the_end_are_refused() -> None:
    data = b"".join(table_to_ipc(TABLE))
    with pytest.raises(InvalidTable, match="ends at"):
        table_from_ipc(data + data)


@given(st.data())
def test_a_damaged_table_is_refused_or_valid_but_never_breaks(data: st.DataObject) -> None:
    whole = bytearray(b"".join(table_to_ipc(TABLE)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = table_from_ipc(bytes(whole), rows_max=1000)
    except InvalidTable:
        return
    table.validate(full=True)


def test_the_columns_can_be_read_from_the_head_alone() -> None:
    table = pa.table({"n": pa.array(range(10_000)), "s": pa.array(["a"] * 10_000)})
    data = b"".join(table_to_ipc(table))
    assert schema_from_ipc(data[:4096]) == table.schema


@pytest.mark.parametrize("head", [b"", b"rubbish", bytes(64)])
def test_what_is_no_head_of_a_table_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidTable):
        schema_from_ipc(head)


def test_columns_of_extension_types_are_not_even_looked_at() -> None:
    sink = pa.BufferOutputStream()
    field = pa.field("n", pa.int64(), metadata={"ARROW:extension:name": "any"})
    with pa.ipc.new_stream(sink, pa.schema([field])):
        pass
    with pytest.raises(InvalidTable, match="extension types"):
        schema_from_ipc(sink.getvalue().to_pybytes())


# --- compressed in-flight data --------------------------------------------------------------------

COMPRESSIBLE = table_to_ipc(pa.table({"city": ["Lisbon"] * 1000}))
PLAIN = b"".join(COMPRESSIBLE)


def framed() -> bytes:
    (frame,), inflated = deflate(COMPRESSIBLE)
    assert inflated == len(PLAIN)
    return bytes(frame)


def test_what_was_compressed_comes_back_equal() -> None:
    assert len(framed()) < len(PLAIN) // 2
    assert inflate(framed(), len(PLAIN)) == PLAIN


def test_what_hardly_shrinks_stays_as_it_is() -> None:
    parts: list[bytes | pa.Buffer] = [xxhash.xxh128_digest(str(i).encode()) for i in range(1000)]
    assert deflate(parts) == (parts, 0)
    assert deflate([]) == ([], 0)


@pytest.mark.parametrize("inflated", [0, -1, 255 * 100 + 1, 2**62])
def test_a_length_that_lz4_cannot_reach_is_refused_before_anything_is_allocated(
    inflated: int,
) -> None:
    with pytest.raises(InvalidTable, match=f"100 bytes of LZ4 cannot hold {inflated}"):
        inflate(b"x" * 100, inflated)


def test_a_limit_is_kept_before_anything_is_allocated() -> None:
    with pytest.raises(InvalidTable, match="cannot hold"):
        inflate(framed(), len(PLAIN), bytes_max=len(PLAIN) - 1)


@pytest.mark.parametrize("off", [-1, 1])
def test_another_length_than_was_stated_is_refused(off: int) -> None:
    with pytest.raises(InvalidTable, match="does not hold"):
        inflate(framed(), len(PLAIN) + off)


def test_bytes_after_the_frame_are_refused() -> None:
    for more in (b"x", framed()):
        with pytest.raises(InvalidTable, match="does not hold"):
            inflate(framed() + more, len(PLAIN))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory from /proc")
def test_refused_frames_leave_no_memory_behind() -> None:
    (frame,), inflated = deflate(
        [b"".join(b"order %d;" % (n * 7919 % 1000) for n in range(20_000))]
    )
    damaged = bytearray(frame)
    damaged[len(damaged) // 2 :] = bytes(len(damaged) // 2)

    def refuse() -> None:
        for _ in range(500):
            with pytest.raises(InvalidTable, match="LZ4"):
                inflate(bytes(damaged), inflated)

    refuse()
    before = resident_bytes()
    refuse()
    assert resident_bytes() - before < 4_000_000


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("cut", [0, 3, 20, -1, -10])
def test_a_truncated_frame_is_refused(cut: int) -> None:
    with pytest.raises(InvalidTable, match="LZ4"):
        inflate(framed()[:cut] + b"" if cut else b"rubbish" * 40, len(PLAIN))
