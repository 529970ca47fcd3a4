"""Tables of rows in RocksDB whose rows stay at hand: a bounded cache in the operator's columns.

A key is read from the database when a batch first names the key, and then found as in memory.
Changed rows become layers as columns, and bytes only when layers are applied: many at once, sorted,
and each row once. When the rows at hand fill their memory, the layers are applied and all rows are
forgotten; keys that occur often are soon at hand again. Rejected: two generations, which keep such
keys but take twice the memory for a given number of keys.

Every change that the database may lack is at hand, so a read of the database needs no layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from ..backend import KeptRowsAtHand
from ..slots import Slots
from .database import ChangedRows, RocksDatabase
from .files import Entry
from .table import CodedRows

#: The GIL is held while so many entries are made.
_PIECE_ROWS = 4096


class RocksTable(CodedRows):
    """See `RowTable`; in its database a `RowSpace`.

    Args:
        cache_bytes: for the rows at hand; past it they are forgotten.
    """

    def __init__(
        self,
        database: RocksDatabase,
        at_hand: KeptRowsAtHand,
        max_parallelism: int,
        cache_bytes: int,
    ) -> None:
        super().__init__(database, at_hand, max_parallelism)
        assert at_hand.grouped == at_hand.layout.keys, "a row is a key"
        self.layout = at_hand.layout
        self._kept = at_hand
        self._cache_bytes = cache_bytes
        #: Rows below this slot have their value; see `ChangedRows` for the generation.
        self._known = 0
        self._generation = 0
        #: Changes of this call.
        self._changed: list[ChangedRows] = []
        database.add_rows(self)

    def begin(self) -> None:
        """Forget the rows at hand if they take too much memory.

        A snapshot that waits for its files holds layers back, and so the rows.
        """
        if self._kept.size_bytes > self._cache_bytes and not self._changed:
            self._database.settle(at_once=True)
            if self._database.is_settled:
                self._forget()

    def recall(self) -> None:
        """See `RowTable`."""
        count, first = self._at_hand.count, self._known
        if first < count:
            names = self._at_hand.names(np.arange(first, count))
            rows, stored = self._keys.encode_sorted(names, self._groups_of(names))
            self._take(rows, names, self._database.get_many(stored), first)
            self._known = count

    def recall_keys(self) -> None:
        """See `RowTable`: a key has one row."""
        self.recall()

    def keep(self, changed: Slots) -> None:
        """See `RowTable`."""
        slots = np.unique(changed)
        columns = [*self._at_hand.names(slots), *self._at_hand.values(slots)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._changed.append(ChangedRows(self._generation, slots, rows))

    def load(self, rows: pa.RecordBatch) -> None:
        """See `RowTable`."""
        self._database.load(self._entries(rows))

    def scan(self) -> Iterator[Slots]:
        """See `RowTable`. Rows written by this call come from the call's writes."""
        written = {key: value for piece in self.pieces(self._changed) for key, value in piece}
        for entries in self._database.scan():
            yield self._anew([(key, written.pop(key, value)) for key, value in entries])
        if written:
            yield self._anew(list(written.items()))

    @property
    def is_written(self) -> bool:
        """Whether this call has written."""
        return bool(self._changed)

    def stage(self) -> None:
        """Hand the changes to the database, just before its commit. Owner thread."""
        self._database.stage_rows(self.layout.name, self._changed)
        self._changed = []

    def pieces(self, changes: Sequence[ChangedRows]) -> Iterator[list[Entry]]:
        """See `RowSpace`. Under the database's lock, in any thread."""
        for _, same in groupby(changes, key=attrgetter("generation")):
            yield from self._pieces(list(same))

    def _pieces(self, changes: Sequence[ChangedRows]) -> Iterator[list[Entry]]:
        last = _last_of(np.concatenate([change.slots for change in changes]))
        table = pa.Table.from_batches([change.rows for change in changes]).take(pa.array(last))
        (rows,) = table.combine_chunks().to_batches()
        groups = self._groups_of(rows.columns[: self._named])
        order = self._keys.order(rows.columns[: self._named], groups)
        for first in range(0, len(order), _PIECE_ROWS):
            at = order[first : first + _PIECE_ROWS]
            some = rows.take(pa.array(at))
            keys = self._keys.encode(some.columns[: self._named], groups[at])
            entries = zip(keys, self._values.encode(some.columns[self._named :]), strict=True)
            yield list(entries) if self._keys.is_plain else sorted(entries)

    def _anew(self, entries: Sequence[Entry]) -> Slots:
        """Have these rows at hand, and no others."""
        self._forget()
        slots = self._bring([(key, value) for key, value in entries if value is not None])
        self._known = self._at_hand.count
        return slots

    def _forget(self) -> None:
        self._at_hand.forget()
        self._known = 0
        self._generation += 1


def _last_of(slots: Slots) -> Slots:
    """Find the last place of each slot: of several writes to one place the last stays."""
    places = np.arange(len(slots))
    last = np.empty(int(slots.max()) + 1, np.int64)
    last[slots] = places
    found: Slots = np.flatnonzero(last.take(slots) == places)
    return found
