"""Entries of one state in a database: single reads, many keys at a time, or ranges in key order.

A call's writes are kept aside until its commit makes a layer of them (`database.py`); its own reads
see its writes. A range comes from the database itself, so the layers of earlier calls are applied
first: when a snapshot waits for its files, the subtask's thread links the files then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...contract.operators import StateLayout
from .database import RocksDatabase, Writes
from .files import Entry
from .parts import Cursor

#: A stored key and its value.
Pair = tuple[bytes, bytes]

#: Not among the writes; never a value.
_MISSING = b"\xc1 missing"


class RocksRows:
    """One state of a database. The caller makes keys and values by the codecs for `layout`."""

    def __init__(self, database: RocksDatabase, layout: StateLayout) -> None:
        self.layout = layout
        self._database = database
        #: Writes of this call; None deletes.
        self._written: dict[bytes, bytes | None] = {}
        #: Their keys in order, once `range` has sorted them.
        self._in_order: list[bytes] | None = None
        database.add(self)

    def entries(self, writes: Writes) -> Iterable[Entry]:
        """See `Space`."""
        return writes.items()

    @property
    def written(self) -> Mapping[bytes, bytes | None]:
        """Writes of this call; None deletes."""
        return self._written

    @property
    def is_written(self) -> bool:
        """Whether this call has written."""
        return bool(self._written)

    def load(self, entries: Iterable[Entry]) -> None:
        """Write restored entries, as committed entries."""
        self._database.load(entries)

    def put(self, entries: Iterable[Entry]) -> None:
        """Write entries, of which None deletes."""
        self._written.update(entries)
        self._in_order = None

    def stage(self) -> None:
        """Hand the writes to the database, just before its commit. Owner thread."""
        if self._written:
            self._database.stage(self.layout.name, self._written)
            self._written = {}
            self._in_order = None

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read the values of distinct keys, sorted keys fastest; None for a key without value."""
        newer = [w for w in (self._written, self._database.recent(self.layout.name)) if w]
        if not newer:
            return self._database.get_many(list(keys))
        known = [next((w[key] for w in newer if key in w), _MISSING) for key in keys]
        missing = [at for at, value in enumerate(known) if value is _MISSING]
        found: list[bytes | None] = [None if v is _MISSING else v for v in known]
        read = self._database.get_many([keys[at] for at in missing])
        for at, value in zip(missing, read, strict=True):
            found[at] = value
        return found

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
    # A failed read ends the loop as well.
    cursor.status()
