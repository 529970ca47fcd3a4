"""Kafka's record batch, format 2: the only form in which records are written and read since 0.11.

    base offset      int64     offset of the first record
    length           int32     of everything behind it
    leader epoch     int32
    magic            int8      2
    checksum         uint32    CRC-32C of everything behind it
    attributes       int16     bits 0-2 compression, 3 log-append time, 4 transactional, 5 control
    last delta       int32     last offset less the first
    base timestamp   int64     milliseconds since 1970; -1: there are none
    max timestamp    int64
    producer         int64     -1: none
    producer epoch   int16
    base sequence    int32
    count            int32
    records                    compressed as a whole

A record: length, attributes (int8, 0), timestamp delta, offset delta, key, value, headers; lengths,
deltas and counts are variable-length numbers, a length of -1 is null. All numbers are big-endian.

Records become Arrow columns, and columns records, by the column. Only the way from one record's
length to the next goes one by one, and where records of one length follow each other it is taken in
one step; the guess is exact, because each length is compared.

Source: the documentation of Kafka 4, "Record Batch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...contract.errors import HeadraceError
from .compression import CODECS, BadCompression, Compression, compress, decompress, joined
from .varints import BadVarint, Bytes, Integers, Unsigned, pack, read, widths, zigzag

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TIMESTAMP = pa.timestamp("ms", tz="UTC")

#: Offset, length, leader epoch, magic, checksum.
_HEAD = struct.Struct(">qiibI")
#: What the checksum covers, up to the records.
_TAIL = struct.Struct(">hiqqqhii")
_LENGTH_END = 12
_SIZE_MIN = _HEAD.size + _TAIL.size
_MAGIC = 2
_COMPRESSION = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_NO_TIMESTAMP = -1
#: Bytes of a record beside key, value and headers, at most.
_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
#: Records of one length in a row after which a longer run is looked for, and how far at first.
_RUN_MIN = 4
_RUN_FIRST = 64
_LENGTH_BITS = 35
_EMPTY = pa.scalar(b"", pa.binary())


class CorruptBatch(HeadraceError):
    """A record batch that does not hold what it says."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch within fetched bytes, by its header.

    Attributes:
        begin: where it begins in these bytes, and `end` behind it.
        offset: of its first record, and `next_offset` behind its last; compaction may have removed
            either.
        checksum: as written.
        count: of records.
    """

    begin: int
    end: int
    offset: int
    next_offset: int
    checksum: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer: int
    count: int

    @property
    def is_transactional(self) -> bool:
        """Part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Holds the mark of a transaction's end, and no record of a user."""
        return bool(self.attributes & _CONTROL)


@dataclass(frozen=True, slots=True)
class Records:
    """Records as columns.

    Attributes:
        offsets: int64.
        timestamps: of type TIMESTAMP.
        keys, values: binary.
        headers: of type HEADERS; None: not asked for.
    """

    offsets: pa.Array
    timestamps: pa.Array
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None


def encode(
    values: pa.Array,
    *,
    keys: pa.Array | None = None,
    timestamps: pa.Array | None = None,
    headers: pa.Array | None = None,
    now_ms: int,
    compression: Compression = "none",
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    transactional: bool = False,
) -> list[pa.Buffer]:
    """Make a batch of at least one record, in parts that are to be sent one after the other.

    Args:
        values: binary or string, as are `keys`; null is Kafka's null.
        timestamps: a timestamp column; null, or None: `now_ms`, milliseconds since 1970.
        headers: of a type that casts to HEADERS; null: none.
        producer: id and epoch.
        sequence: number of the first record, for the broker to know a repetition.
    """
    first_ms = newest_ms = now_ms
    delta: Unsigned | int = 0
    if timestamps is not None:
        times = _milliseconds(timestamps, now_ms)
        first_ms, newest_ms = int(times[0]), int(times.max())
        delta = zigzag(times - first_ms)
    content = _records(_binary(values), keys, delta, headers)
    if compression != "none":
        content = [compress(joined(content), compression)]
    attributes = CODECS.index(compression) | (_TRANSACTIONAL if transactional else 0)
    count = len(values)
    tail = _TAIL.pack(attributes, count - 1, first_ms, newest_ms, *producer, sequence, count)
    checksum = google_crc32c.value(tail)
    for part in content:
        checksum = google_crc32c.extend(checksum, part)
    size = _SIZE_MIN - _LENGTH_END + sum(part.size for part in content)
    head = _HEAD.pack(0, size, -1, _MAGIC, checksum)
    return [pa.py_buffer(head + tail), *content]


def cut(
    values: pa.Array,
    keys: pa.Array | None = None,
    headers: pa.Array | None = None,
    *,
    bytes_max: int,
) -> Iterator[slice]:
    """Cut records into slices whose batches, uncompressed, hold at most `bytes_max` bytes.

    A record that is larger than that is a slice by itself.
    """
    sizes = np.full(len(values), _RECORD_OVERHEAD, np.int64)
    for column in (values, keys):
        if column is not None:
            sizes += _lengths(_binary(column), null=0)
    if headers is not None:
        sizes += _lengths(_header_bytes(headers), null=0)
    ends = np.cumsum(sizes)
    first = 0
    while first < len(values):
        before = int(ends[first - 1]) if first else 0
        room = before + bytes_max - _SIZE_MIN
        end = max(first + 1, int(np.searchsorted(ends, room, side="right")))
        yield slice(first, end)
        first = end


def batches(data: pa.Buffer) -> list[Batch]:
    """Find the batches in fetched bytes; an incomplete one at the end is left out.

    Raises: CorruptBatch.
    """
    found = []
    begin = 0
    while begin + _SIZE_MIN <= data.size:
        offset, length, _, magic, checksum = _HEAD.unpack_from(data, begin)
        if magic != _MAGIC:
            raise CorruptBatch(
                f"the batch at offset {offset} is of format {magic}; headrace reads format 2, which"
                " Kafka writes since 0.11: let a newer client write the topic anew"
            )
        if length < _SIZE_MIN - _LENGTH_END:
            raise CorruptBatch(f"the batch at offset {offset} is {length} bytes long")
        end = begin + _LENGTH_END + length
        if end > data.size:
            break
        attributes, last, base_ts, max_ts, producer, _, _, count = _TAIL.unpack_from(
            data, begin + _HEAD.size
        )
        found.append(
            Batch(
                begin, end, offset, offset + last + 1, checksum, attributes, base_ts, max_ts,
                producer, count,
            )
        )  # fmt: skip
        begin = end
    return found


def decode(data: pa.Buffer, found: Sequence[Batch], *, with_headers: bool = True) -> Records:
    """Decode batches of `data`, at least one, into columns; checksums are compared.

    Raises: CorruptBatch.
    """
    pieces: list[pa.Buffer] = []
    starts, at = [], 0
    plain = not any(batch.attributes & _COMPRESSION for batch in found)
    for batch in found:
        piece = _verified(data, batch)
        first = batch.begin + _HEAD.size + _TAIL.size if plain else at
        if not plain:
            pieces.append(_expanded(piece, batch))
            at += pieces[-1].size
        try:
            if plain:
                starts.append(_starts(data, first, batch.end, batch.count))
            else:
                starts.append(first + _starts(pieces[-1], 0, pieces[-1].size, batch.count))
        except (IndexError, ValueError) as error:
            raise CorruptBatch(f"records of the batch at offset {batch.offset}: {error}") from error
    try:
        content = data if plain else joined(pieces)
        return _columns(content, np.concatenate(starts), found, with_headers=with_headers)
    except (BadVarint, pa.ArrowException) as error:
        offset = found[0].offset
        raise CorruptBatch(f"a record at or after offset {offset}: {error}") from error


def is_abort(data: pa.Buffer, batch: Batch) -> bool:
    """Whether a control batch marks its producer's transaction as aborted."""
    (key,) = decode(data, [batch], with_headers=False).keys.to_pylist() or [None]
    if key is None or len(key) < 4:
        raise CorruptBatch(f"the control batch at offset {batch.offset} has no type")
    version, type_ = struct.unpack_from(">hh", key)
    return bool(version >= 0 and type_ == 0)


def _milliseconds(timestamps: pa.Array, now_ms: int) -> Integers:
    times = timestamps.cast(pa.timestamp("ms", tz=timestamps.type.tz), safe=False).cast(pa.int64())
    return cast(Integers, pc.fill_null(times, now_ms).to_numpy(zero_copy_only=False))


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(column: pa.Array, *, null: int) -> Integers:
    """Return the bytes of each value of a binary column."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    lengths = np.diff(offsets).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = null
    return lengths


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, b"") if column.null_count else column


def _records(
    values: pa.Array, keys: pa.Array | None, times: Unsigned | int, headers: pa.Array | None
) -> list[pa.Buffer]:
    """Write records side by side: length, numbers, key, length of the value, value, headers.

    Without headers, the zero that counts them goes before the next record's length, which spares a
    column to join; the first record then begins with a zero too many, and the last lacks one.
    """
    value_lengths = _lengths(values, null=-1)
    value_length = zigzag(value_lengths)
    #: Attributes, time, offset less that of the first record.
    numbers: list[Unsigned | int] = [0, times, np.arange(0, 2 * len(values), 2, dtype=np.uint64)]
    sizes: Integers = np.maximum(value_lengths, 0)
    for each in (*numbers, value_length):
        sizes = sizes + widths(each)
    parts = [_filled(values)]
    if keys is None:
        sizes += 1
        numbers += [1, value_length]  # a length of -1, which is null
    else:
        keys = _binary(keys)
        key_lengths = _lengths(keys, null=-1)
        key_length = zigzag(key_lengths)
        sizes += widths(key_length) + np.maximum(key_lengths, 0)
        numbers.append(key_length)
        parts = [_filled(keys), pack([value_length])[0], *parts]
    if headers is None:
        column, _ = pack([0, zigzag(sizes + 1), *numbers])
        joined = pc.binary_join_element_wise(column, *parts, _EMPTY)
        return [_bytes_of(joined).slice(1), pa.py_buffer(b"\0")]
    parts.append(_header_bytes(headers))
    column, _ = pack([zigzag(sizes + _lengths(parts[-1], null=0)), *numbers])
    return [_bytes_of(pc.binary_join_element_wise(column, *parts, _EMPTY))]


def _bytes_of(column: pa.Array) -> pa.Buffer:
    """Return the bytes of all values of a binary column."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return column.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _header_bytes(headers: pa.Array) -> pa.Array:
    """Write each row's headers as in a record: their count, then key and value of each."""
    headers = headers.cast(HEADERS)
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    flat = headers.flatten()
    keys = _filled(flat.field("key").cast(pa.binary()))
    values = flat.field("value")
    key_lengths, _ = pack([zigzag(_lengths(keys, null=0))])
    value_lengths, _ = pack([zigzag(_lengths(values, null=-1))])
    each = pc.binary_join_element_wise(key_lengths, keys, value_lengths, _filled(values), _EMPTY)
    number, _ = pack([zigzag(counts)])
    return pc.binary_join_element_wise(number, _grouped(each, counts), _EMPTY)


def _grouped(column: pa.Array, counts: Integers) -> pa.Array:
    """Join neighbouring values of a binary column, so many for each row."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    content = column.buffers()[2] or pa.py_buffer(b"")
    buffers = [None, pa.py_buffer(offsets[bounds]), content]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def _verified(data: pa.Buffer, batch: Batch) -> pa.Buffer:
    """Return what the checksum of a batch covers, compared with it."""
    begin = batch.begin + _HEAD.size
    covered = data.slice(begin, batch.end - begin)
    checksum = google_crc32c.value(covered)
    if checksum != batch.checksum:
        raise CorruptBatch(
            f"the batch at offset {batch.offset} is damaged: its checksum is {checksum:08x}, and"
            f" {batch.checksum:08x} was written"
        )
    return covered


def _expanded(covered: pa.Buffer, batch: Batch) -> pa.Buffer:
    try:
        return decompress(covered.slice(_TAIL.size), batch.attributes & _COMPRESSION)
    except BadCompression as error:
        raise CorruptBatch(f"the batch at offset {batch.offset}: {error}") from error


def _starts(data: pa.Buffer, at: int, end: int, count: int) -> Integers:
    """Return where the content of each record begins: behind its length.

    Raises: IndexError, ValueError, when `count` records do not fill `data` from `at` to `end`.
    """
    view, bytes_ = memoryview(data).cast("B"), np.frombuffer(data, np.uint8)[:end]
    runs: list[Integers] = []
    single: list[int] = []
    found, stride, alike = 0, 0, 0
    while found < count:
        # The one loop over records: nothing is called for lengths below 8 KiB.
        byte, second = view[at], view[at + 1]
        if byte < 128:
            begin, length = at + 1, byte >> 1
        elif second < 128:
            begin, length = at + 2, (byte & 127 | second << 7) >> 1
        else:
            begin, length = _long_length(view, at)
        single.append(begin)
        found += 1
        before, at = at, begin + length
        if at - before != stride:
            stride, alike = at - before, 0
            continue
        alike += 1
        if alike == _RUN_MIN and found < count:
            more = _alike(bytes_, before, begin - before, stride, count - found)
            runs += [np.array(single, np.int64), begin + stride * np.arange(1, more + 1)]
            single = []
            found += more
            at += more * stride
            # Where runs are short, they are looked for more rarely.
            alike = 0 if more > _RUN_FIRST else -_RUN_FIRST
    if at != end:
        raise ValueError(f"{count} records end at byte {at}, and the batch at {end}")
    return np.concatenate([*runs, np.array(single, np.int64)])


def _long_length(data: memoryview, at: int) -> tuple[int, int]:
    """Read a record's length: where its content begins, and how long it is."""
    length = shift = 0
    while shift < _LENGTH_BITS:
        byte = data[at]
        length |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return at, length >> 1
    raise ValueError(f"the length before byte {at} has no end")


def _alike(data: Bytes, at: int, width: int, stride: int, most: int) -> int:
    """Count the records behind the one at `at` whose length is the same, `most` at most."""
    most = min(most, (len(data) - at) // stride - 1)
    pattern = data[at : at + width]
    found, chunk = 0, _RUN_FIRST
    while found < most:
        count = min(chunk, most - found)
        begin = at + (found + 1) * stride
        rows = data[begin : begin + count * stride].reshape(count, stride)[:, :width]
        same = (rows == pattern).all(axis=1)
        if not same.all():
            return found + int(same.argmin())
        found += count
        chunk *= 4
    return found


def _columns(
    data: pa.Buffer, starts: Integers, found: Sequence[Batch], *, with_headers: bool
) -> Records:
    bytes_ = np.frombuffer(data, np.uint8)
    delta, at = read(bytes_, starts + 1)
    offset, at = read(bytes_, at)
    key_length, key_at = read(bytes_, at)
    value_length, value_at = read(bytes_, key_at + np.maximum(key_length, 0))
    counts = [batch.count for batch in found]
    offset += np.repeat([batch.offset for batch in found], counts)
    headers = None
    if with_headers:
        headers = _headers(data, bytes_, value_at + np.maximum(value_length, 0))
    return Records(
        offsets=_int64(offset),
        timestamps=_timestamps(delta, found, counts),
        keys=_pieces(data, key_at, key_length),
        values=_pieces(data, value_at, value_length),
        headers=headers,
    )


def _int64(values: Integers) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _timestamps(delta: Integers, found: Sequence[Batch], counts: Sequence[int]) -> pa.Array:
    append = np.array([bool(batch.attributes & _LOG_APPEND_TIME) for batch in found])
    base = np.array([batch.base_timestamp for batch in found], np.int64)
    if append.any():
        base = np.where(append, [batch.max_timestamp for batch in found], base)
        delta = np.where(np.repeat(append, counts), 0, delta)
    times = delta + np.repeat(base, counts)
    missing = base == _NO_TIMESTAMP
    mask = np.repeat(missing, counts) if missing.any() else None
    return pa.array(times, pa.int64(), mask=mask).view(TIMESTAMP)


def _pieces(data: pa.Buffer, at: Integers, length: Integers) -> pa.Array:
    """Copy pieces of `data` into a binary column; a negative length is null.

    The pieces and the gaps between them are neighbours in one column; every second value is taken.
    """
    null = length < 0
    if null.all():
        return pa.nulls(len(at), pa.binary())
    bounds = np.empty(2 * len(at), np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(length, 0)
    if bounds[0] < 0 or bounds[-1] > data.size or (bounds[1:] < bounds[:-1]).any():
        raise BadVarint("a key or value reaches beyond its record")
    buffers = [None, pa.py_buffer(bounds), data]
    every = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    rows = pa.array(np.arange(0, len(bounds), 2, dtype=np.int32), mask=null if null.any() else None)
    return every.take(rows)


def _headers(data: pa.Buffer, bytes_: Bytes, at: Integers) -> pa.Array:
    """Read the headers of each record: the first of all records, then the second, and so on."""
    counts, at = read(bytes_, at)
    if (counts < 0).any() or int(counts.sum()) > data.size:
        raise BadVarint("a record has no count of headers")
    bounds = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    places = np.zeros((4, total), np.int64)
    for turn in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > turn)
        key_length, key_at = read(bytes_, at[rows])
        value_length, value_at = read(bytes_, key_at + np.maximum(key_length, 0))
        places[:, bounds[rows] + turn] = key_at, key_length, value_at, value_length
        at[rows] = value_at + np.maximum(value_length, 0)
    key_at, key_length, value_at, value_length = places
    keys = _pieces(data, key_at, key_length) if total else pa.array([], pa.binary())
    values = _pieces(data, value_at, value_length) if total else pa.array([], pa.binary())
    pairs = pa.StructArray.from_arrays(
        [keys.cast(pa.string()), values], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(bounds), pairs).cast(HEADERS)
