"""Compression of record batches: gzip, snappy, lz4 and zstd, as Kafka frames them.

lz4 is the frame format, and snappy comes in two shapes: one plain block, or the framing of
snappy-java ("xerial"), which Kafka's own client writes: a header of 16 bytes, then blocks with
their length before them. A batch that grows beyond `BYTES_MAX` is refused before it is expanded
further: the length of compressed data tells nothing about its content.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal, get_args

import lz4.frame
import pyarrow as pa

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

#: Kafka's numbers of codecs are the places in this list: format, never change.
CODECS: tuple[Compression, ...] = get_args(Compression)
#: Largest content of one batch.
BYTES_MAX = 512 << 20
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10
_FIRST_READ = 64 << 10
#: As zlib's own default; Arrow's is the slowest.
_GZIP_LEVEL = 6


class BadCompression(ValueError):
    """Compressed data that cannot be expanded."""


def compress(data: pa.Buffer, codec: Compression) -> pa.Buffer:
    """Compress the records of a batch."""
    if codec == "none":
        return data
    if codec == "lz4":
        # Brokers refuse frames whose blocks need each other, which Arrow's codec writes.
        return pa.py_buffer(lz4.frame.compress(data, block_linked=False, store_size=False))
    if codec == "gzip":
        return pa.Codec("gzip", compression_level=_GZIP_LEVEL).compress(data)
    if codec == "zstd":
        return pa.compress(data, codec=codec)
    out = [_XERIAL_HEADER]
    for begin in range(0, data.size, _XERIAL_BLOCK):
        piece = data.slice(begin, min(_XERIAL_BLOCK, data.size - begin))
        block = pa.compress(piece, codec="snappy", asbytes=True)
        out += [struct.pack(">i", len(block)), block]
    return pa.py_buffer(b"".join(out))


def decompress(data: pa.Buffer, number: int) -> pa.Buffer:
    """Expand the records of a batch, given the codec's number in its header.

    Raises: BadCompression.
    """
    if not 0 <= number < len(CODECS):
        raise BadCompression(f"compression {number} is unknown")
    codec = CODECS[number]
    try:
        if codec == "none":
            return data
        if codec == "snappy":
            return _snappy(data)
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            return _all_of(stream, 4 * data.size + _FIRST_READ)
    except (pa.ArrowException, OSError, struct.error) as error:
        raise BadCompression(f"{codec}: {error}") from error


def joined(pieces: Sequence[pa.Buffer]) -> pa.Buffer:
    """Copy buffers into one. Arrow's memory is warm; fresh pages cost more than the copy."""
    if len(pieces) == 1:
        return pieces[0]
    whole = pa.allocate_buffer(sum(piece.size for piece in pieces))
    view = memoryview(whole)
    at = 0
    for piece in pieces:
        view[at : at + piece.size] = memoryview(piece)
        at += piece.size
    return whole


def _all_of(stream: pa.NativeFile, size: int) -> pa.Buffer:
    """Read a stream to its end; `size`: how much to ask for at first."""
    pieces: list[pa.Buffer] = []
    room = BYTES_MAX
    while True:
        piece = stream.read_buffer(min(size, room + 1))
        if not piece.size:
            return joined(pieces) if pieces else piece
        room -= piece.size
        if room < 0:
            raise BadCompression(f"it expands to more than {BYTES_MAX} bytes")
        pieces.append(piece)
        size *= 2


def _snappy(data: pa.Buffer) -> pa.Buffer:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data, BYTES_MAX)
    out: list[pa.Buffer] = []
    room = BYTES_MAX
    at = len(_XERIAL_HEADER)
    while at < data.size:
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 < size <= data.size - at:
            raise BadCompression(f"snappy: a block of {size} bytes does not fit")
        out.append(_snappy_block(data.slice(at, size), room))
        room -= out[-1].size
        at += size
    return joined(out) if out else pa.py_buffer(b"")


def _snappy_block(block: pa.Buffer, room: int) -> pa.Buffer:
    """Expand a block, which begins with its content's length."""
    size = shift = 0
    for byte in bytes(block[:5]):
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > room:
        raise BadCompression(f"snappy: it expands to more than {BYTES_MAX} bytes")
    return pa.decompress(block, decompressed_size=size, codec="snappy")
