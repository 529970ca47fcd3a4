"""Small records as bytes: one line of JSON, then its checksum. Format, never change.

    {"number":4,...}\\n
    xxh3:0123456789abcdef\\n

The checksum is xxh3-64 (seed 0, lower-case hex) over the first line. Records of early versions have
no second line; no single flipped bit makes such a record of a newer one.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import xxhash

#: Largest record.
RECORD_BYTES_MAX = 64 * 1024

Record = TypeVar("Record", bound=msgspec.Struct)


class DamagedRecord(Exception):
    """A record that cannot be read; the message says why."""


def encode_record(record: msgspec.Struct) -> bytes:
    """Return the whole file."""
    line = msgspec.json.encode(record) + b"\n"
    return line + _checksum(line)


def decode_record(data: bytes, type: type[Record]) -> Record:
    """Read a whole file. Raises: DamagedRecord."""
    if len(data) > RECORD_BYTES_MAX:
        raise DamagedRecord(f"{len(data)} bytes are too many")
    end = data.find(b"\n") + 1
    line, checksum = data[:end], data[end:]
    if checksum and checksum != _checksum(line):
        raise DamagedRecord("its checksum does not fit")
    try:
        return msgspec.json.decode(line, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecord(str(error)) from error


def _checksum(line: bytes) -> bytes:
    return b"xxh3:%s\n" % xxhash.xxh3_64_hexdigest(line).encode()
