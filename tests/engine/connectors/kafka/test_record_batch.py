"""Record batches: what is written is read back, by this codec and by other clients."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headrace.engine.connectors.kafka.compression import CODECS, Compression
from headrace.engine.connectors.kafka.record_batch import (
    HEADERS,
    TIMESTAMP,
    CorruptBatch,
    Records,
    batches,
    cut,
    decode,
    encode,
    is_abort,
)

TESTDATA = Path(__file__).parent / "testdata"
CLIENTS = ("librdkafka", "java")

Header = tuple[str, bytes | None]
#: Time in milliseconds, key, value, headers.
Row = tuple[int, bytes | None, bytes | None, list[Header]]

ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=80),
        # Runs of equal lengths are read in another way.
        st.none() | st.binary(max_size=300) | st.just(b"equal values" * 3),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=60,
)


def encoded(
    rows: list[Row], compression: Compression = "none", *, headers: bool = True
) -> pa.Buffer:
    times, keys, values, extra = zip(*rows, strict=True)
    pairs = [[{"key": key, "value": value} for key, value in each] for each in extra]
    parts = encode(
        pa.array(values, pa.binary()),
        keys=pa.array(keys, pa.binary()),
        timestamps=pa.array(times, pa.int64()).view(TIMESTAMP),
        headers=pa.array(pairs, HEADERS) if headers else None,
        now_ms=0,
        compression=compression,
    )
    return pa.py_buffer(b"".join(parts))


def rows_of(records: Records) -> list[Row]:
    assert records.headers is not None
    extra = [[(one["key"], one["value"]) for one in each] for each in records.headers.to_pylist()]
    times = records.timestamps.view(pa.int64()).to_pylist()
    columns = (times, records.keys.to_pylist(), records.values.to_pylist(), extra)
    return list(zip(*columns, strict=True))


@given(rows=ROWS, compression=st.sampled_from(CODECS))
def test_records_come_back(rows: list[Row], compression: Compression) -> None:
    data = encoded(rows, compression)
    (batch,) = batches(data)
    records = decode(data, [batch])
    assert rows_of(records) == rows
    assert records.offsets.to_pylist() == list(range(len(rows)))
    assert (batch.offset, batch.next_offset, batch.end) == (0, len(rows), data.size)


@given(rows=ROWS)
def test_records_without_headers_or_keys_come_back(rows: list[Row]) -> None:
    plain: list[Row] = [(time, key, value, []) for time, key, value, _ in rows]
    data = encoded(plain, headers=False)
    assert rows_of(decode(data, batches(data))) == plain
    values = pa.array([value for _, _, value, _ in rows], pa.binary())
    data = pa.py_buffer(b"".join(encode(values, now_ms=77)))
    keyless: list[Row] = [(77, None, value, []) for _, _, value, _ in rows]
    assert rows_of(decode(data, batches(data))) == keyless


@given(first=ROWS, second=ROWS, both=st.tuples(*[st.sampled_from(CODECS)] * 2))
def test_neighbouring_batches_are_read_at_once(
    first: list[Row], second: list[Row], both: tuple[Compression, Compression]
) -> None:
    pieces = [encoded(rows, codec) for rows, codec in zip((first, second), both, strict=True)]
    data = pa.py_buffer(b"".join(pieces))
    assert rows_of(decode(data, batches(data))) == first + second


@given(rows=ROWS)
def test_another_client_reads_what_is_written(rows: list[Row]) -> None:
    batch = DefaultRecordBatch(bytearray(encoded(rows)))
    assert batch.validate_crc()
    read = [(each.timestamp, each.key, each.value, each.headers) for each in batch]
    assert read == rows


@given(rows=ROWS, codec=st.sampled_from([0, 1, 3]))
def test_what_another_client_writes_is_read(rows: list[Row], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, True, 5, 0, 9, 10_000_000)
    for offset, (time, key, value, headers) in enumerate(rows):
        assert builder.append(offset, time, key, value, headers) is not None
    data = pa.py_buffer(bytes(builder.build()))
    (batch,) = batches(data)
    assert (batch.producer, batch.is_transactional, batch.is_control) == (5, True, False)
    assert rows_of(decode(data, [batch])) == rows


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_batches_of_other_clients_are_read(client: str, codec: str) -> None:
    data = pa.py_buffer((TESTDATA / f"{client}_{codec}.bin").read_bytes())
    expected = [
        (
            1_795_000_000_000 + 137 * i,
            None if i % 5 == 0 else b"key-%d" % i,
            None if i == 7 else b"value %d " % i * 6,
            [("trace", b"%d" % i), ("empty", None)] if i % 4 == 0 else [],
        )
        for i in range(20)
    ]
    assert rows_of(decode(data, batches(data))) == expected


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=50), bytes_max=st.integers(200, 9000)
)
def test_records_are_cut_into_batches_below_the_limit(sizes: list[int], bytes_max: int) -> None:
    values = pa.array([b"v" * size for size in sizes], pa.binary())
    slices = list(cut(values, bytes_max=bytes_max))
    assert [i for each in slices for i in range(each.start, each.stop)] == list(range(len(sizes)))
    for each in slices:
        batch = encode(values[each], now_ms=2**62)
        alone = each.stop - each.start == 1
        assert alone or sum(part.size for part in batch) <= bytes_max


def test_a_slice_of_a_column_is_written_by_itself() -> None:
    values = pa.array([None, b"a", b"bb", None, b"ccc"])
    keys = pa.array(["k0", "k1", "k2", None, "k4"])
    data = pa.py_buffer(b"".join(encode(values[1:4], keys=keys[1:4], now_ms=1)))
    read = decode(data, batches(data))
    assert read.values.to_pylist() == [b"a", b"bb", None]
    assert read.keys.to_pylist() == [b"k1", b"k2", None]


def test_times_of_other_units_and_zones_become_milliseconds() -> None:
    times = pa.array([1_500_000, None, 2_700_000], pa.timestamp("us", tz="Europe/Berlin"))
    data = pa.py_buffer(b"".join(encode(pa.array([b""] * 3), timestamps=times, now_ms=9)))
    assert decode(data, batches(data)).timestamps.cast(pa.int64()).to_pylist() == [1500, 9, 2700]


def test_the_brokers_time_takes_the_place_of_the_writers() -> None:
    writer = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10_000)
    for offset in range(3):
        writer.append(offset, 100 + offset, None, b"v", [])
    data = bytearray(writer.build())
    data[22] |= 0x08
    data[35:43] = (777).to_bytes(8, "big")
    buffer = pa.py_buffer(bytes(_resealed(data)))
    times = decode(buffer, batches(buffer)).timestamps.cast(pa.int64()).to_pylist()
    assert times == [777, 777, 777]


def test_an_incomplete_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    whole = encoded([(0, None, b"value", [])]).to_pybytes()
    for missing in range(1, len(whole)):
        found = batches(pa.py_buffer(whole + whole[:-missing]))
        assert [batch.end for batch in found] == [len(whole)]


@settings(max_examples=300)
@given(rows=ROWS, at=st.integers(17, 10_000), flip=st.integers(1, 255))
def test_each_damaged_byte_is_noticed(rows: list[Row], at: int, flip: int) -> None:
    data = bytearray(encoded(rows))
    data[17 + (at - 17) % (len(data) - 17)] ^= flip
    buffer = pa.py_buffer(bytes(data))
    with pytest.raises(CorruptBatch, match="checksum"):
        decode(buffer, batches(buffer))


@settings(max_examples=300)
@given(rows=ROWS, at=st.integers(57, 10_000), flip=st.integers(1, 255), fits=st.booleans())
def test_a_liar_with_a_good_checksum_does_no_harm(
    rows: list[Row], at: int, flip: int, fits: bool
) -> None:
    """Lengths and counts may be anything: the answer is an error or columns that can be read."""
    data = bytearray(encoded(rows))
    data[57 + (at - 57) % (len(data) - 57)] ^= flip
    buffer = pa.py_buffer(bytes(_resealed(data)))
    try:
        records = decode(buffer, batches(buffer), with_headers=fits)
    except CorruptBatch:
        return
    for column in (records.keys, records.values, records.headers):
        if column is not None:
            column.validate(full=True)


def test_old_formats_are_refused() -> None:
    data = bytearray(encoded([(0, None, b"value", [])]))
    data[16] = 1
    with pytest.raises(CorruptBatch, match="is of format 1; headrace reads format 2"):
        batches(pa.py_buffer(bytes(data)))


@pytest.mark.parametrize(("type_", "aborted"), [(0, True), (1, False)])
def test_marks_of_ends_are_told_apart(type_: int, aborted: bool) -> None:
    key = pa.array([b"\0\0" + type_.to_bytes(2, "big")])
    data = pa.py_buffer(b"".join(encode(pa.array([b"\0" * 6]), keys=key, now_ms=1)))
    assert is_abort(data, batches(data)[0]) is aborted


def _resealed(data: bytearray) -> bytearray:
    import google_crc32c

    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return data
