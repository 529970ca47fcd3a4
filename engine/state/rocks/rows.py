"""A state in a database whose entries are read singly, many at a time, or by ranges of stored keys, in order.

What a call writes is kept aside until its commit makes a layer of it (`rocks.py`); its own reads see it. Ranges are read from the database
itself, so what earlier calls wrote is applied first: when a snapshot waits for its files, the subtask's thread links them then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from ...contract.operators import StateLayout
from .database import RocksDatabase, Writes
from .files import Entry
from .parts import Cursor

#: A stored key and its value.
Pair = tuple[bytes, bytes]


class RocksRows:
    """One state of a database. The caller makes keys and values by the codecs that fit `layout`."""

    def __init__(self, database: RocksDatabase, layout: StateLayout) -> None:
        self.layout = layout
        self._database = database
        #: What this call wrote; None: it is deleted.
        self._written: dict[bytes, bytes | None] = {}
        #: Its keys in order, once that was asked for.
        self._in_order: list[bytes] | None = None
        database.add(self)

    def entries(self, writes: Writes) -> Iterable[Entry]:
        """See `Space`."""
        return writes.items()

    @property
    def is_written(self) -> bool:
        """This call wrote something."""
        return bool(self._written)

    def load(self, entries: Iterable[Entry]) -> None:
        """Write restored entries; they count as committed."""
        self._database.load(entries)

    def put(self, entries: Iterable[Entry]) -> None:
        """Write entries, of which None deletes."""
        self._written.update(entries)
        self._in_order = None

    def stage(self) -> None:
        """Hand over what was written, just before the database commits. Owner thread."""
        self._database.stage(self.layout.name, self._written)
        self._written = {}
        self._in_order = None

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read the values of some keys; None where there is none."""
        known: dict[bytes, bytes | None] = {}
        for written in (self._written, self._database.recent(self.layout.name)):
            for key in keys if written else ():
                if key in written:
                    known.setdefault(key, written[key])
        missing = sorted(key for key in set(keys) if key not in known)
        known.update(zip(missing, self._database.get_many(missing), strict=True))
        return [known[key] for key in keys]

    def cursor(self) -> Cursor:
        """A place in the database for `range`; good until the next call writes."""
        return self._database.cursor()

    def range(self, cursor: Cursor, lower: bytes, upper: bytes) -> Iterator[Pair]:
        """Yield the entries with lower <= key < upper, in order."""
        stored = entries_between(cursor, lower, upper)
        return self._merged(stored, lower, upper) if self._written else stored

    def _merged(self, stored: Iterator[Pair], lower: bytes, upper: bytes) -> Iterator[Pair]:
        if self._in_order is None:
            self._in_order = sorted(self._written)
        keys = self._in_order
        own = keys[bisect_left(keys, lower) : bisect_left(keys, upper)]
        written = {key: self._written[key] for key in own}
        at = 0
        for key, value in stored:
            while at < len(own) and own[at] < key:
                yield from _kept(own[at], written[own[at]])
                at += 1
            if key not in written:
                yield key, value
        for key in own[at:]:
            yield from _kept(key, written[key])


def _kept(key: bytes, value: bytes | None) -> Iterator[Pair]:
    if value is not None:
        yield key, value


def entries_between(cursor: Cursor, lower: bytes, upper: bytes) -> Iterator[Pair]:
    """Yield the entries with lower <= key < upper, in order."""
    cursor.seek(lower)
    while cursor.valid():
        key = cursor.key()
        if key >= upper:
            return
        yield key, cursor.value()
        cursor.next()
    # It ends the same way when it cannot read on.
    cursor.status()
