"""Checkpoint metadata as bytes: one header line, then JSON that a person can read.

    headrace-checkpoint 1 xxh3:0123456789abcdef 4711\n
    {
      "job": "orders",
      ...

The header states the format's version, xxh3-64 (seed 0, lower-case hex) over `headrace-checkpoint 1
4711\n` and the body, and the body's length in bytes. The checksum covers version and length too,
which tells a damaged version from a newer one. A header has exactly one spelling: the reader makes
it again and compares, and so finds every flipped bit and every missing byte.

Decoding trusts nothing: after the checksum (which only guards against accidents) the schema is
closed, and names, indexes, paths and numbers are checked against each other (`consistency.py`).
Decoded metadata cannot run code or point outside the job's folder.
"""

from __future__ import annotations

import functools
import re

import msgspec
import xxhash

from .consistency import InvalidMetadata, check_consistency
from .metadata import CheckpointMetadata

#: The only version of the format that is written and read.
VERSION = 1

#: Largest metadata that is written or read: about a thousand subtasks with all-to-all edges fit.
METADATA_BYTES_MAX = 256 * 1024**2

#: Small metadata is decoded once: so many bytes at most, of so many checkpoints.
_REMEMBERED_BYTES = 128 * 1024
_REMEMBERED_MAX = 32

_MAGIC = b"headrace-checkpoint"
_HEADER_BYTES_MAX = 100
#: Largest metadata file.
FILE_BYTES_MAX = METADATA_BYTES_MAX + _HEADER_BYTES_MAX
_HEADER = re.compile(
    rb"headrace-checkpoint ([1-9][0-9]{0,8}) xxh3:([0-9a-f]{16}) (0|[1-9][0-9]{0,17})"
)


class CorruptMetadata(Exception):
    """A damaged metadata file.

    Attributes:
        path: the file.
        offset: position of the first byte, or of the part, that is known to be wrong.
        expected: the right content, in words.
        found: the content there instead.
    """

    def __init__(self, path: str, offset: int, expected: str, found: str) -> None:
        super().__init__(path, offset, expected, found)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: expected {self.expected}, found {self.found}"


class UnsupportedVersion(Exception):
    """An intact metadata file of another format version: not damage, so no older checkpoint may
    stand in for it.
    """

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path, version)
        self.path = path
        self.version = version

    def __str__(self) -> str:
        return (
            f"{self.path}: format version {self.version}; "
            f"this version of headrace reads version {VERSION}"
        )


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the whole file.

    Raises: InvalidMetadata for content that `decode_metadata` would refuse.
    """
    check_consistency(metadata)
    body = msgspec.json.format(msgspec.json.encode(metadata), indent=2) + b"\n"
    if len(body) > METADATA_BYTES_MAX:
        raise InvalidMetadata(f"metadata of {len(body)} bytes; the limit is {METADATA_BYTES_MAX}")
    return _header(VERSION, body) + body


def decode_metadata(data: bytes, path: str = "metadata") -> CheckpointMetadata:
    """Read a whole file; `path` is for errors. Raises: CorruptMetadata, UnsupportedVersion."""
    body = _checked_body(data, path)
    start = len(data) - len(body)
    decode = _decode if len(body) > _REMEMBERED_BYTES else _remembered
    try:
        return decode(body)
    except InvalidMetadata as error:
        raise CorruptMetadata(path, start, "consistent metadata", str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptMetadata(path, start, "the checkpoint schema", str(error)) from error


def _decode(body: bytes) -> CheckpointMetadata:
    metadata = msgspec.json.decode(body, type=CheckpointMetadata)
    check_consistency(metadata)
    return metadata


#: A restore looks at the metadata of a checkpoint several times.
_remembered = functools.lru_cache(_REMEMBERED_MAX)(_decode)


def _header(version: int, body: bytes) -> bytes:
    digest = xxhash.xxh3_64(b"%s %d %d\n" % (_MAGIC, version, len(body)))
    digest.update(body)
    checksum = digest.hexdigest().encode()
    return b"%s %d xxh3:%s %d\n" % (_MAGIC, version, checksum, len(body))


def _checked_body(data: bytes, path: str) -> bytes:
    if len(data) > FILE_BYTES_MAX:
        raise CorruptMetadata(path, 0, f"at most {METADATA_BYTES_MAX} bytes", f"{len(data)} bytes")
    end = data.find(b"\n", 0, _HEADER_BYTES_MAX)
    match = _HEADER.fullmatch(data[: max(end, 0)])
    if match is None:
        expected = f"a line '{_MAGIC.decode()} VERSION xxh3:CHECKSUM LENGTH'"
        raise CorruptMetadata(path, _common_prefix(data, _MAGIC), expected, repr(data[:60]))
    version, length, body = int(match[1]), int(match[3]), data[end + 1 :]
    if length != len(body):
        raise CorruptMetadata(path, end + 1, f"{length} bytes of metadata", f"{len(body)} bytes")
    found = data[: end + 1]
    header = _header(version, body)
    if header != found:
        raise CorruptMetadata(path, 0, found.decode().strip(), header.decode().strip())
    if version != VERSION:
        raise UnsupportedVersion(path, version)
    return body


def _common_prefix(left: bytes, right: bytes) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
