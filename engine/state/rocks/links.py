"""A copy of an open database by hard links, made without holding the interpreter's lock.

rocksdict's own checkpoint holds the lock while RocksDB syncs three small files: 4 to 40 ms on a
busy disk, in which no other Python thread runs, not even the owner thread. The copy needs no sync:
it is read at once, and a crash makes it worthless. So this module makes the copy, by calls that let
other threads run.

No writes come meanwhile, but background compactions replace files. RocksDB's manifest, its log of
added and deleted files, says which files belong together. So: link every table, read the manifest,
link named tables that came since, and drop unnamed tables. If a named table is gone already, a
compaction removed it: begin again.

The manifest is read with mistrust, never written: contents other than drawn here are refused
(`Unknown`), and `files.checkpoint` then leaves the copy to RocksDB. Format, RocksDB's: blocks of 32
KiB of records (checksum 4 bytes, length 2, little-endian, type 1, bytes; the types 1 whole, 2
first, 3 middle, 4 last part); a record is an edit: fields, each a varint tag and the tag's data.

Source: RocksDB 8 to 10, db/log_format.h and db/version_edit.h (behaviour, not code).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

#: After so many tries, each overtaken by a compaction, RocksDB makes the copy its own way.
_TRIES = 5

_BLOCK_BYTES = 32 * 1024
_HEADER_BYTES = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Tags of an edit's fields.
_COMPARATOR = 1
_DELETED_FILE = 6
_NEW_FILE = 103
#: One varint: log number, next file, last sequence, previous log, oldest log needed, largest column
#: family.
_NUMBERS = frozenset((2, 3, 4, 9, 10, 203))
#: Fields with this bit are a length and bytes, and may be skipped.
_IGNORABLE = 1 << 13
#: Fields of a new file: the end, and the bit of fields that may not be skipped.
_FILE_END = 1
_FILE_NEEDED = 1 << 6


class Unknown(Exception):
    """The manifest has unknown contents."""


def link_database(source: str, folder: str) -> bool:
    """Make `folder` a copy of the open database in `source`, which is flushed and not written to.

    False: it was not possible, and `folder` does not exist. Raises: OSError.
    """
    for _ in range(_TRIES):
        os.mkdir(folder)
        try:
            if _linked(source, folder):
                return True
        except Unknown:
            _remove(folder)
            return False
        except BaseException:
            _remove(folder)
            raise
        _remove(folder)
    return False


def live_tables(manifest: bytes) -> tuple[set[int], int]:
    """Return the numbers of the database's files, and the length of the manifest's complete
    records.

    Raises: Unknown.
    """
    live: set[int] = set()
    end = 0
    try:
        for edit, after in _records(manifest):
            added, deleted = _changes(edit)
            live = (live - deleted) | added
            end = after
    except IndexError as error:
        raise Unknown("a field is cut off") from error
    return live, end


def _linked(source: str, folder: str) -> bool:
    tables = {name for name in os.listdir(source) if name.endswith(".sst")}
    linked = {name for name in sorted(tables) if _link(source, folder, name)}
    try:
        current = _read(source, "CURRENT")
        manifest = current.decode("ascii").strip()
        content = _read(source, manifest)
    except FileNotFoundError:  # a new one was begun
        return False
    numbers, end = live_tables(content)
    named = {f"{number:06}.sst" for number in numbers}
    if not all(_link(source, folder, name) for name in sorted(named - linked)):
        return False
    for name in linked - named:
        os.unlink(os.path.join(folder, name))
    _write(folder, manifest, content[:end])
    _write(folder, "CURRENT", current)
    for name in os.listdir(source):
        if name.startswith("OPTIONS-") or name.endswith(".json"):
            _link(source, folder, name)
    return True


def _link(source: str, folder: str, name: str) -> bool:
    try:
        os.link(os.path.join(source, name), os.path.join(folder, name))
    except FileNotFoundError:
        return False
    return True


def _records(manifest: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records, each with the offset behind it; skips a half-written last
    record.
    """
    at = 0
    parts: list[bytes] = []
    while at + _HEADER_BYTES <= len(manifest):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        length = int.from_bytes(manifest[at + 4 : at + 6], "little")
        kind = manifest[at + 6]
        begin, at = at + _HEADER_BYTES, at + _HEADER_BYTES + length
        if at > len(manifest):
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or (kind in (_WHOLE, _FIRST)) != (
            not parts
        ):
            raise Unknown(f"a record of kind {kind}")
        parts.append(manifest[begin:at])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts), at
            parts = []


def _changes(edit: bytes) -> tuple[set[int], set[int]]:
    """Return the numbers of the files that the edit adds and deletes."""
    added: set[int] = set()
    deleted: set[int] = set()
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag == _NEW_FILE:
            number, at = _new_file(edit, at)
            added.add(number)
        elif tag == _DELETED_FILE:
            _level, at = _varint(edit, at)
            number, at = _varint(edit, at)
            deleted.add(number)
        elif tag in _NUMBERS:
            _, at = _varint(edit, at)
        elif tag == _COMPARATOR or tag & _IGNORABLE:
            at = _skip(edit, at)
        else:
            raise Unknown(f"a field with tag {tag}")
    return added, deleted


def _new_file(edit: bytes, at: int) -> tuple[int, int]:
    """Level, number, size, smallest and largest key, smallest and largest sequence number, then
    fields of its own.
    """
    _level, at = _varint(edit, at)
    number, at = _varint(edit, at)
    _size, at = _varint(edit, at)
    at = _skip(edit, _skip(edit, at))
    for _ in range(2):
        _, at = _varint(edit, at)
    while True:
        tag, at = _varint(edit, at)
        if tag == _FILE_END:
            return number, at
        if tag & _FILE_NEEDED:
            raise Unknown(f"a file with a field of tag {tag}")
        at = _skip(edit, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _skip(data: bytes, at: int) -> int:
    length, at = _varint(data, at)
    if at + length > len(data):
        raise Unknown("a field is cut off")
    return at + length


def _read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _write(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "xb") as file:
        file.write(data)


def _remove(folder: str) -> None:
    """Remove a folder without subfolders."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
