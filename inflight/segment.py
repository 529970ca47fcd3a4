"""The segment: the data file of a worker and checkpoint, for all subtasks of the worker.

One file, because storage likes few large objects (32 KiB files with fsync: 150 MB/s; 16 MiB: 1.2
GB/s). The file has no index: the checkpoint's metadata locates each blob and holds its checksum, so
a segment alone means nothing and a damaged index cannot exist. Format, never change (a new format
takes a new version):

    offset  width  content
    0       8      magic: 89 48 52 53 45 47 0D 0A ("\\x89HRSEG\\r\\n"; a transfer as text breaks it)
    8       4      version, unsigned, little-endian: 1
    12      4      zero
    16      ...    blobs, back to back, without padding

A blob is opaque here; its checksum is xxh3-64 of its bytes, as 16 lower-case hex digits. Arrow IPC
streams are multiples of eight bytes long, as is the header, so they stay aligned.

A blob of in-flight data may be one LZ4 frame (lz4_Frame_format 1.6) around an Arrow IPC stream. Its
handle then states the stream's length (`BufferHandle.inflated`), and the checksum is over the
frame. The file does not say so.

Tables become blobs without code in them: no pickle, no extension types (reading one runs a
registered deserialiser), no compressed bodies (a few bytes could claim gigabytes). Tables are
validated in full when read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import lz4.frame
import pyarrow as pa
import xxhash

from headrace.channels.arrow_messages import has_compressed_body

MAGIC = b"\x89HRSEG\r\n"
VERSION = 1
HEADER_BYTES = 16

_HEADER = struct.Struct("<8sII")
assert _HEADER.size == HEADER_BYTES

#: Largest blob that is written or read, unless the caller states a limit: a handle must not make
#: us allocate at will.
BLOB_BYTES_MAX = 8 * 1024**3

#: Largest number of rows of a table that is read: rows of a null column take no bytes, so bytes
#: do not bound them.
TABLE_ROWS_MAX = 2**31

#: Batches of more rows than this on average are written as they are.
_ROWS_WORTH_A_PART = 128

#: LZ4 cannot shrink more than this: a frame that is said to hold more is damaged or made up.
LZ4_RATIO_MAX = 255

_CHECKSUM = re.compile("[0-9a-f]{16}")
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_EXTENSION_KEY = b"ARROW:extension:name"


class CorruptBlob(Exception):
    """Stored bytes differ from the written bytes.

    Attributes:
        offset: where in the file.
        expected: the right content, in words.
        found: the content found there.
    """

    def __init__(self, offset: int, expected: str, found: str) -> None:
        super().__init__(offset, expected, found)
        self.offset = offset
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"offset {self.offset}: expected {self.expected}, found {self.found}"


class InvalidTable(Exception):
    """Bytes or a table refused on the way to or from a checkpoint; the message says why."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A piece of a segment: `length` bytes at `offset`, with xxh3-64 `checksum` in hex."""

    offset: int
    length: int
    checksum: str


def checksum_of(data: bytes | memoryview | pa.Buffer) -> str:
    """Return xxh3-64 of the bytes, as 16 lower-case hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def checksum_of_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Return xxh3-64 of bytes in parts; a part may change once the next is asked for."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


class SegmentBuilder:
    """Lines up blobs for one file without copying; blobs stay unchanged until the write."""

    def __init__(self) -> None:
        #: The header, then every blob, in the order of the file.
        self._parts: list[bytes | memoryview] = [_HEADER.pack(MAGIC, VERSION, 0)]
        self._size_bytes = HEADER_BYTES

    @property
    def size_bytes(self) -> int:
        """Size of the file so far, header included."""
        return self._size_bytes

    @property
    def is_empty(self) -> bool:
        """No blob was appended: the segment is not worth a file."""
        return len(self._parts) == 1

    def append(self, *parts: bytes | memoryview | pa.Buffer) -> Blob:
        """Add one blob in parts (perhaps empty) and return the blob's place."""
        views = [memoryview(part).cast("B") for part in parts]
        length = sum(view.nbytes for view in views)
        if length > BLOB_BYTES_MAX:
            raise InvalidTable(f"a piece of {length} bytes; the limit is {BLOB_BYTES_MAX}")
        checksum = xxhash.xxh3_64()
        for view in views:
            checksum.update(view)
        blob = Blob(self._size_bytes, length, checksum.hexdigest())
        self._parts += views
        self._size_bytes += length
        return blob

    def parts(self) -> list[bytes | memoryview]:
        """Return the buffers of the file, in order: `b"".join(parts())` is the file."""
        assert sum(len(part) for part in self._parts) == self._size_bytes
        return list(self._parts)


def check_header(read: Callable[[int, int], bytes]) -> None:
    """Refuse any file but a segment of this version.

    `read(offset, length)` reads the file. Raises: CorruptBlob.
    """
    found = read(0, HEADER_BYTES)
    expected = _HEADER.pack(MAGIC, VERSION, 0)
    if found != expected:
        raise CorruptBlob(0, f"segment header {expected.hex()}", found[:HEADER_BYTES].hex())


def read_blob(
    read: Callable[[int, int], bytes], blob: Blob, bytes_max: int = BLOB_BYTES_MAX
) -> bytes:
    """Read one blob with `read(offset, length)` and verify the checksum.

    An oversized blob is refused before reading. Raises: CorruptBlob.
    """
    if blob.offset < HEADER_BYTES:
        raise CorruptBlob(blob.offset, f"an offset behind the {HEADER_BYTES} byte header", "less")
    if not 0 <= blob.length <= bytes_max:
        raise CorruptBlob(blob.offset, f"a length of 0 to {bytes_max}", str(blob.length))
    if not _CHECKSUM.fullmatch(blob.checksum):
        raise CorruptBlob(blob.offset, "a checksum of 16 hex digits", repr(blob.checksum))
    data = read(blob.offset, blob.length)
    if len(data) != blob.length:
        raise CorruptBlob(blob.offset, f"{blob.length} bytes", f"{len(data)} bytes")
    found = checksum_of(data)
    if found != blob.checksum:
        raise CorruptBlob(blob.offset, f"xxh3 {blob.checksum}", f"xxh3 {found}")
    return data


def table_to_ipc(table: pa.Table) -> list[bytes | pa.Buffer]:
    """Write `table` as an uncompressed Arrow IPC stream, in parts; large columns are not copied.

    Raises: InvalidTable for extension types.
    """
    refuse_extensions(table.schema)
    parts = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(parts, mode="w"), table.schema) as writer:
        writer.write_table(_in_large_batches(table))
    return parts.written


class _Parts:
    """A file in memory; the written parts are kept as given.

    A growing buffer would touch fresh memory for every byte: 2 ms a MiB here.
    """

    closed = False

    def __init__(self) -> None:
        self.written: list[bytes | pa.Buffer] = []

    def write(self, part: bytes | pa.Buffer) -> int:
        self.written.append(part)
        return len(part)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _in_large_batches(table: pa.Table) -> pa.Table:
    """Copy many small batches together: a part costs a call."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    return table.combine_chunks() if chunks * _ROWS_WORTH_A_PART > table.num_rows else table


def table_from_ipc(
    data: bytes | memoryview, *, bytes_max: int = BLOB_BYTES_MAX, rows_max: int = TABLE_ROWS_MAX
) -> pa.Table:
    """Read a stream of `table_to_ipc`, trusting nothing: limits, no code, then full validation.

    The table's columns lie in `data`. Raises: InvalidTable.
    """
    if len(data) > bytes_max:
        raise InvalidTable(f"an Arrow stream of {len(data)} bytes; the limit is {bytes_max}")
    if data[-len(_END_OF_STREAM) :] != _END_OF_STREAM:
        raise InvalidTable("an Arrow stream without its end mark")
    try:
        _check_messages(data)
        source = pa.BufferReader(data)
        batches: list[pa.RecordBatch] = []
        rows = 0
        with pa.ipc.open_stream(source) as reader:
            schema = reader.schema
            for batch in reader:
                rows += batch.num_rows
                if rows > rows_max:
                    raise InvalidTable(f"more than {rows_max} rows")
                batches.append(batch)
        table = pa.Table.from_batches(batches, schema)
        table.validate(full=True)
    except (pa.ArrowException, struct.error, OSError, ValueError) as error:
        # ValueError: column names that are not UTF-8 show only when pyarrow makes strings of them.
        raise InvalidTable(f"not a valid Arrow stream: {error}") from error
    if source.tell() != len(data):
        raise InvalidTable(f"an Arrow stream ends at {source.tell()} of {len(data)} bytes")
    return table


def schema_from_ipc(head: bytes) -> pa.Schema:
    """Read the columns from the first bytes of a stream of `table_to_ipc`.

    Raises: InvalidTable.
    """
    try:
        message = pa.ipc.MessageReader.open_stream(pa.BufferReader(head)).read_next_message()
        if message.type != "schema" or _EXTENSION_KEY in message.metadata.to_pybytes():
            raise InvalidTable("no schema without extension types at the head of an Arrow stream")
        return pa.ipc.read_schema(message)
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InvalidTable(f"not the head of an Arrow stream: {error}") from error


def deflate(parts: Sequence[bytes | pa.Buffer]) -> tuple[list[bytes | pa.Buffer], int]:
    """Return the parts as one LZ4 frame, and their length.

    Parts are returned unchanged, with 0, if LZ4 does not shrink them by an eighth.
    """
    whole = b"".join(parts)
    frame = pa.compress(whole, codec="lz4")
    if frame.size > len(whole) - len(whole) // 8:
        return list(parts), 0
    return [frame], len(whole)


def inflate(frame: bytes, inflated: int, bytes_max: int = BLOB_BYTES_MAX) -> bytes:
    """Return the `inflated` bytes of a frame; limits are checked before memory is allocated.

    Raises: InvalidTable.
    """
    if not 0 < inflated <= min(bytes_max, LZ4_RATIO_MAX * len(frame)):
        raise InvalidTable(f"{len(frame)} bytes of LZ4 cannot hold {inflated}")
    # Not Arrow's stream, which is slower and leaks its buffers when a frame is refused.
    reader = lz4.frame.LZ4FrameDecompressor()
    try:
        found: bytes = reader.decompress(frame, max_length=inflated + 1)
    except RuntimeError as error:
        raise InvalidTable(f"not an LZ4 frame: {error}") from error
    if len(found) != inflated or not reader.eof or reader.unused_data:
        raise InvalidTable(f"an LZ4 frame that does not hold {inflated} bytes")
    return found


def refuse_extensions(schema: pa.Schema) -> None:
    """Refuse extension types: reading them runs a registered deserialiser.

    Raises: InvalidTable.
    """
    for field in schema:
        _refuse_extension(field.name, field.type)


def _refuse_extension(name: str, kind: pa.DataType) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        raise InvalidTable(f"column {name!r} has the extension type {kind}; use its storage type")
    if isinstance(kind, pa.DictionaryType):
        _refuse_extension(name, kind.value_type)
    for index in range(kind.num_fields):
        _refuse_extension(name, kind.field(index).type)


def _check_messages(data: bytes | memoryview) -> None:
    """Refuse extension types and compressed bodies before Arrow acts on either."""
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(data)):
        # The key may also be a column's name or comment; refusing those as well is the price of not
        # parsing the schema.
        if message.type == "schema" and _EXTENSION_KEY in message.metadata.to_pybytes():
            raise InvalidTable("an Arrow stream with extension types")
        if has_compressed_body(message):
            raise InvalidTable(f"an Arrow stream with a compressed {message.type}")
