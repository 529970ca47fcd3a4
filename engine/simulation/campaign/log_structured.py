"""A small, seeded log-structured database, in place of RocksDB behind `state/rocks/database.py`.

As in RocksDB, writes stay in memory until a flush makes a new, immutable file; a merge now and then
joins neighbouring files, and the old files go from the folder. A file's number is unique while the
database is open, but may return after a restore. A copy consists of links to the files. A cursor
goes through all keys in order, blind to later writes. The seed draws additional flushes and merges.

    NNNNNN.sst  {key: value or None, for a deleted key}, sorted, as MessagePack
    MANIFEST    the names of its files, oldest first, and the next number

`LogStructured` has the functions of `state/rocks/files.py`.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...state.rocks import files as rocks_files
from ...state.rocks.files import Entry, RocksSizes, group_start
from ...state.rocks.rows import Pair
from ..coverage import Coverage

_MANIFEST = "MANIFEST"
_GROUPS_END = 1 << 15

_Table = dict[bytes, bytes | None]


class LogCursor:
    """A place among immutable entries, in key order: `Cursor` of `state/rocks/parts.py`."""

    def __init__(self, entries: Sequence[Pair]) -> None:
        self._entries = entries
        self._at = len(entries)

    def seek(self, key: bytes, /) -> None:
        """See `Cursor`."""
        self._at = bisect_left(self._entries, (key,))

    def valid(self) -> bool:
        """See `Cursor`."""
        return self._at < len(self._entries)

    def key(self) -> bytes:
        """See `Cursor`."""
        return self._entries[self._at][0]

    def value(self) -> bytes:
        """See `Cursor`."""
        return self._entries[self._at][1]

    def next(self) -> None:
        """See `Cursor`."""
        self._at += 1

    def status(self) -> None:
        """Reading never fails."""


class LogDatabase:
    """An open database. `written`: entries of the next flush; only `put` changes them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.written: _Table = {}
        self.names: list[str] = []
        self._tables: dict[str, _Table] = {}
        self._next = 1
        #: All entries in order, valid until the next write; a flush or a merge changes no entry.
        self._in_order: list[Pair] | None = None
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, _MANIFEST)
        if os.path.exists(path):
            self.names, self._next = msgspec.msgpack.decode(_content(path))
            for name in self.names:
                self._tables[name] = msgspec.msgpack.decode(
                    _content(os.path.join(folder, name)), type=_Table
                )

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Look keys up, newest first."""
        tables = [self.written, *(self._tables[name] for name in reversed(self.names))]
        return [next((t[key] for t in tables if key in t), None) for key in keys]

    def items(self) -> _Table:
        """Everything, the deleted included."""
        return self._merged([*(self._tables[name] for name in self.names), self.written])

    def put(self, entries: _Table) -> None:
        """Write, or delete where the value is None."""
        self.written |= entries
        self._in_order = None

    def in_order(self) -> Sequence[Pair]:
        """All entries that are not deleted, in the order of the keys; never changed."""
        if self._in_order is None:
            found = sorted(self.items().items())
            self._in_order = [(key, value) for key, value in found if value is not None]
        return self._in_order

    def iter(self, options: object) -> LogCursor:
        """A place among all entries of now; `options` are RocksDB's."""
        return LogCursor(self.in_order())

    def flush(self) -> None:
        """Make a file of the written entries."""
        if self.written:
            self.names.append(self._add(self.written))
            self.written = {}

    def compact(self, begin: int, end: int) -> None:
        """Replace the files `begin` to `end` by their merge.

        A merge with the oldest file forgets deleted keys.
        """
        old = self.names[begin:end]
        merged = self._merged([self._tables.pop(name) for name in old])
        if begin == 0:
            merged = {key: value for key, value in merged.items() if value is not None}
        self.names[begin:end] = [self._add(merged)] if merged else []
        for name in old:
            os.unlink(os.path.join(self.folder, name))

    def copy_to(self, folder: str) -> None:
        """Make `folder` a copy, of links."""
        os.mkdir(folder)
        for name in self.names:
            os.link(os.path.join(self.folder, name), os.path.join(folder, name))
        manifest = msgspec.msgpack.encode((self.names, self._next))
        _write(os.path.join(folder, _MANIFEST), manifest)

    def close(self) -> None:
        """Drop unflushed entries: there is no log, and a checkpoint has them."""

    def _add(self, table: _Table) -> str:
        name = f"{self._next:06}.sst"
        self._next += 1
        self._tables[name] = table
        _write(os.path.join(self.folder, name), msgspec.msgpack.encode(dict(sorted(table.items()))))
        return name

    def _merged(self, tables: Iterable[_Table]) -> _Table:
        merged: _Table = {}
        for table in tables:
            merged |= table
        return merged


class LogStructured:
    """Opens, reads, writes and copies such databases; draws spontaneous events from `rng`."""

    files_of = staticmethod(rocks_files.files_of)

    def __init__(self, rng: random.Random, coverage: Coverage) -> None:
        self._rng = rng
        self._coverage = coverage

    def open_database(
        self, folder: str, sizes: RocksSizes, *, read_only: bool = False
    ) -> LogDatabase:
        """See `rocks_files.open_database`."""
        return LogDatabase(folder)

    def write(self, database: LogDatabase, entries: Iterable[Entry]) -> int:
        """See `rocks_files.write`."""
        fresh = dict(entries)
        database.put(fresh)
        if self._rng.random() < 0.1:
            database.flush()
        return len(fresh)

    def scan(self, database: LogDatabase, groups: range) -> Iterator[list[tuple[bytes, bytes]]]:
        """See `rocks_files.scan`."""
        first, end = group_start(groups.start), group_start(groups.stop)
        yield [(key, value) for key, value in database.in_order() if first <= key < end]

    def keep_only(self, database: LogDatabase, groups: range) -> None:
        """See `rocks_files.keep_only`."""
        first, end = group_start(groups.start), group_start(groups.stop)
        database.put({key: None for key in database.items() if not first <= key < end})

    def copy_groups(self, source: LogDatabase, target: LogDatabase, groups: range) -> None:
        """See `rocks_files.copy_groups`."""
        self.write(target, (entry for entries in self.scan(source, groups) for entry in entries))

    def checkpoint(self, database: LogDatabase, folder: str) -> None:
        """See `files.checkpoint`. Merges may come right before and right after the copy."""
        database.flush()
        self._merge_sometimes(database)
        database.copy_to(folder)
        self._merge_sometimes(database)

    def is_merging(self, database: LogDatabase) -> bool:
        """Merges take no time."""
        return False

    def _merge_sometimes(self, database: LogDatabase) -> None:
        files = len(database.names)
        if files > 1 and self._rng.random() < 0.25:
            begin = self._rng.randrange(files - 1)
            database.compact(begin, self._rng.randint(begin + 2, files))
            self._coverage.count("database files merged")


def _content(path: str) -> Any:
    with open(path, "rb") as file:
        return file.read()


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
