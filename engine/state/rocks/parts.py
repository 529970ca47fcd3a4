"""The databases of one operator, each with a range of the operator's key groups.

Most often there is one. After a rescale a subtask owns parts of several old databases. The subtask
takes over each database, by links to its immutable files, and each database keeps its key groups:
no entry is copied, whatever the size, and a key is in one database only. Two marks delete the
entries of key groups that other subtasks own now. Only too many databases are merged, by copying a
database key by key into its neighbour: each database has files, and memory, of its own.

Source: Flink's `RocksDBIncrementalRestoreOperation`, which takes over the old database with most of
the range and inserts the entries of the others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rocksdict import Rdict, ReadOptions

from headrace.recovery.handles import SharedFile

from ...contract.operators import RestoredDatabase
from .files import Entry, RocksSizes, group_start

#: So many databases one operator of one subtask may have.
PARTS_MAX = 8
#: No share of the memory is smaller.
_SHARE_BYTES_MIN = 1 << 20


class Cursor(Protocol):
    """A place among the entries of a database, in the order of their keys."""

    def seek(self, key: bytes, /) -> None:
        """Go to the first entry at or above `key`."""
        ...

    def valid(self) -> bool:
        """There is an entry here."""
        ...

    def key(self) -> bytes: ...

    def value(self) -> bytes: ...

    def next(self) -> None: ...

    def status(self) -> None:
        """Raise the error of a failed read."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """A range of key groups: one database is taken over, the entries of others are copied into it.

    Attributes:
        base: the database that is taken over; None: the range begins empty.
    """

    groups: range
    base: RestoredDatabase | None = None
    copied: tuple[RestoredDatabase, ...] = ()

    @property
    def known(self) -> Mapping[str, SharedFile]:
        """See `DatabaseSnapshot`."""
        return {} if self.base is None else self.base.known


def shares_of(databases: Sequence[RestoredDatabase], groups: range) -> list[Share]:
    """Divide `groups` among the holders of some of these groups, in key-group order.

    Together the ranges are `groups`, also where groups have no holder.
    """
    mine = [d for d in databases if common(d.groups, groups)]
    mine.sort(key=lambda database: database.groups.start)
    shares: list[Share] = []
    for database in mine:
        share = Share(common(database.groups, groups), database)
        overlaps = bool(shares) and share.groups.start < shares[-1].groups.stop
        if overlaps:  # of no checkpoint of ours, but not to be lost
            share = _joined(shares.pop(), share)
        shares.append(share)
    while len(shares) > PARTS_MAX:
        least = min(range(len(shares)), key=lambda at: _worth(shares[at]))
        left = max(0, least - 1)
        shares[left : left + 2] = [_joined(shares[left], shares[left + 1])]
    starts = [groups.start, *(share.groups.start for share in shares[1:])]
    stops = [*starts[1:], groups.stop]
    whole = shares or [Share(groups)]
    return [
        Share(range(start, stop), share.base, share.copied)
        for start, stop, share in zip(starts, stops, whole, strict=True)
    ]


class Parts:
    """Open databases below `folder`, which exists.

    Writers hold the lock of the owning `RocksDatabase`.

    The constructor raises as `RestoredDatabase.fetch`.
    """

    def __init__(
        self, folder: str, shares: Sequence[Share], sizes: RocksSizes, engine: Any
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._groups = [share.groups for share in shares]
        #: The first key of each but the first.
        self._bounds = [group_start(share.groups.start) for share in shares[1:]]
        self._databases: list[Rdict] = []
        sizes = RocksSizes(
            max(_SHARE_BYTES_MIN, sizes.write_buffer_bytes // len(shares)),
            max(_SHARE_BYTES_MIN, sizes.block_cache_bytes // len(shares)),
        )
        try:
            for share in shares:
                self._add(share, sizes)
        except BaseException:
            self.close()
            raise

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Read stored keys, sorted keys fastest."""
        if not keys:
            return []
        # In raw mode all keys are bytes, which rocksdict's types do not say.
        databases: list[Any] = list(self._databases)
        if not self._bounds:
            return list(databases[0].get(keys))
        found: list[bytes | None] = [None] * len(keys)
        places: list[list[int]] = [[] for _ in databases]
        for at, key in enumerate(keys):
            places[bisect_right(self._bounds, key)].append(at)
        for database, mine in zip(databases, places, strict=True):
            if mine:
                for at, value in zip(mine, database.get([keys[at] for at in mine]), strict=True):
                    found[at] = value
        return found

    def write(self, entries: Iterable[Entry]) -> None:
        """Write, in order."""
        if not self._bounds:
            self._engine.write(self._databases[0], entries)
            return
        places: list[list[Entry]] = [[] for _ in self._databases]
        for entry in entries:
            places[bisect_right(self._bounds, entry[0])].append(entry)
        for database, mine in zip(self._databases, places, strict=True):
            if mine:
                self._engine.write(database, mine)

    def scan(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all entries in the order of their keys, some thousand at a time."""
        for groups, database in zip(self._groups, self._databases, strict=True):
            yield from self._engine.scan(database, groups)

    def cursor(self) -> Cursor:
        """Make a cursor over all entries, blind to later writes."""
        cursors: list[Any] = [database.iter(ReadOptions()) for database in self._databases]
        return _Joined(cursors, self._bounds) if self._bounds else cursors[0]

    def is_merging(self) -> bool:
        """Whether files are being merged, or written, in the background."""
        return any(self._engine.is_merging(database) for database in self._databases)

    def checkpoint(self, folder: str) -> tuple[str, ...]:
        """Copy each database to a new folder, immutable files as links. Returns the folders.

        `folder`: beginning of the folders' names.
        """
        folders = tuple(_numbered(folder, at) for at in range(len(self._databases)))
        try:
            for database, place in zip(self._databases, folders, strict=True):
                self._engine.checkpoint(database, place)
        except BaseException:
            for place in folders:
                shutil.rmtree(place, ignore_errors=True)
            raise
        return folders

    def close(self) -> None:
        """Close all; the files stay."""
        for database in self._databases:
            # The close may flush, and the worker may have removed the folder already.
            with contextlib.suppress(Exception):
                database.close()

    def _add(self, share: Share, sizes: RocksSizes) -> None:
        place = os.path.join(self._folder, _numbered("db", len(self._databases)))
        if share.base is not None:
            os.mkdir(place)
            share.base.fetch(place)
        database = self._engine.open_database(place, sizes)
        self._databases.append(database)
        if share.base is not None and not _within(share.base.groups, share.groups):
            self._engine.keep_only(database, share.groups)
        for other in share.copied:
            self._copy(other, database, common(other.groups, share.groups), sizes)

    def _copy(
        self, other: RestoredDatabase, target: Rdict, groups: range, sizes: RocksSizes
    ) -> None:
        folder = os.path.join(self._folder, "import")
        os.mkdir(folder)
        other.fetch(folder)
        source = self._engine.open_database(folder, sizes, read_only=True)
        try:
            self._engine.copy_groups(source, target, groups)
        finally:
            source.close()
        shutil.rmtree(folder)


class _Joined:
    """The cursors of databases with consecutive keys, as a single cursor."""

    def __init__(self, cursors: Sequence[Cursor], bounds: Sequence[bytes]) -> None:
        self._cursors = cursors
        self._bounds = bounds
        self._at = 0

    def seek(self, key: bytes, /) -> None:
        self._at = bisect_right(self._bounds, key)
        self._cursors[self._at].seek(key)
        self._skip()

    def valid(self) -> bool:
        return self._cursors[self._at].valid()

    def key(self) -> bytes:
        return self._cursors[self._at].key()

    def value(self) -> bytes:
        return self._cursors[self._at].value()

    def next(self) -> None:
        self._cursors[self._at].next()
        self._skip()

    def status(self) -> None:
        self._cursors[self._at].status()

    def _skip(self) -> None:
        """Continue in the next database at the end of the present one, unless the read failed."""
        while self._at < len(self._bounds) and not self._cursors[self._at].valid():
            self._cursors[self._at].status()
            self._at += 1
            self._cursors[self._at].seek(self._bounds[self._at - 1])


def common(left: range, right: range) -> range:
    """The key groups of both."""
    return range(max(left.start, right.start), min(left.stop, right.stop))


def _within(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _joined(left: Share, right: Share) -> Share:
    """Join two shares: take over the database with the larger part."""
    more, less = (left, right) if _worth(left) >= _worth(right) else (right, left)
    stop = max(left.groups.stop, right.groups.stop)
    copied = (*more.copied, *less.copied, *([] if less.base is None else [less.base]))
    return Share(range(left.groups.start, stop), more.base, copied)


def _worth(share: Share) -> float:
    """Estimate the bytes of the range in its database."""
    if share.base is None:
        return 0.0
    ours = len(common(share.base.groups, share.groups))
    return share.base.size_bytes * ours / len(share.base.groups)


def _numbered(name: str, number: int) -> str:
    return f"{name}-{number}" if number else name
