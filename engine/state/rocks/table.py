"""Tables of rows with due times in RocksDB: the rows of one batch, or of one slice of due rows, are
at hand.

The operator numbers the keys of a batch; their stored rows are read at once, sorted; changed rows
are written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.keygroups import KeyGroups, key_groups

from ..backend import DUE_SUFFIX, DueRowsAtHand, RowsAtHand
from ..slots import Slots
from .codecs import KeyCodec
from .database import RocksDatabase
from .due import DueIndex
from .rows import Pair, RocksRows
from .values import value_codec

_WORD_BYTES = 9


class CodedRows:
    """Rows at hand, and their bytes in a database."""

    def __init__(self, database: RocksDatabase, at_hand: RowsAtHand, max_parallelism: int) -> None:
        layout = at_hand.layout
        fields = list(layout.schema)
        self._database = database
        self._at_hand = at_hand
        self._max_parallelism = max_parallelism
        self._schema = layout.schema
        self._named = layout.keys
        self._grouped = layout.schema.names[: at_hand.grouped]
        self._keys = KeyCodec(layout.name, fields[: layout.keys], max_parallelism)
        self._values = value_codec(fields[layout.keys :])

    def _bring(self, pairs: Sequence[Pair]) -> Slots:
        """Take stored rows to hand."""
        rows = self._decoded([key for key, _ in pairs], [value for _, value in pairs])
        slots = self._at_hand.number(rows)
        self._load(slots, rows)
        return slots

    def _take(
        self,
        rows: Slots,
        names: Sequence[pa.Array],
        values: Sequence[bytes | None],
        first: int = 0,
    ) -> None:
        """Load stored values into rows of `names`, whose slots begin at `first`; None: no value."""
        found = [value for value in values if value is not None]
        if found:
            present = rows[np.array([value is not None for value in values], np.bool_)]
            taken = pa.array(present)
            columns = [*(name.take(taken) for name in names), *self._values.decode(found)]
            self._load(first + present, pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _load(self, slots: Slots, rows: pa.RecordBatch) -> None:
        self._at_hand.load(slots, rows)

    def _groups_of(self, columns: Sequence[pa.Array]) -> KeyGroups:
        columns = list(columns)[: len(self._grouped)]
        batch = pa.RecordBatch.from_arrays(columns, names=self._grouped)
        return key_groups(batch, self._grouped, self._max_parallelism)

    def _encoded(self, rows: pa.RecordBatch) -> list[bytes]:
        columns = rows.columns[: self._named]
        return self._keys.encode(columns, self._groups_of(columns))

    def _entries(self, rows: pa.RecordBatch) -> list[Pair]:
        values = self._values.encode(rows.columns[self._named :])
        return list(zip(self._encoded(rows), values, strict=True))

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        columns = [*self._keys.decode(keys), *self._values.decode(values)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class RocksDueTable(CodedRows):
    """See `DueTable`. A second state is the index of due times.

    Attributes:
        spaces: the states in the database.
    """

    def __init__(
        self, database: RocksDatabase, at_hand: DueRowsAtHand, max_parallelism: int
    ) -> None:
        super().__init__(database, at_hand, max_parallelism)
        self._rows_due = at_hand
        self._rows = RocksRows(database, at_hand.layout)
        name, fields = self._rows.layout.name + DUE_SUFFIX, list(self._schema)[: self._named]
        self._due = DueIndex(database, name, fields, database.groups, max_parallelism)
        self.spaces = [self._rows, self._due.rows]
        self._no_slots: Slots = np.zeros(0, np.int64)
        no_rows = pa.RecordBatch.from_pylist([], schema=self._schema)
        #: Stored rows at hand, and their slots.
        self._read = self._none = (self._no_slots, no_rows)

    def begin(self) -> None:
        """Forget the rows at hand."""
        self._at_hand.forget()
        self._read = self._none

    def recall(self) -> None:
        """See `RowTable`."""
        names = self._at_hand.names(np.arange(self._at_hand.count))
        slots, stored = self._keys.encode_sorted(names, self._groups_of(names))
        self._take(slots, names, self._rows.get(stored))

    def recall_keys(self) -> None:
        """See `RowTable`."""
        keys = self._at_hand.keys()
        others = [pa.nulls(len(keys[0]), f.type) for f in self._schema][len(keys) : self._named]
        cursor = self._rows.cursor()
        pairs: list[Pair] = []
        for key in sorted(self._keys.encode([*keys, *others], self._groups_of(keys))):
            of_key = key[: -_WORD_BYTES * len(others)]
            pairs += self._rows.range(cursor, of_key + b"\1", of_key + b"\2")
        self._bring(pairs)

    def keep(self, changed: Slots) -> None:
        """See `RowTable`. Deletes ended and renamed rows."""
        changed = np.unique(changed)
        slots, read = self._read
        old = read.filter(pa.array(np.isin(slots, changed)))
        live = changed[self._rows_due.live(changed)]
        columns = [*self._at_hand.names(live), *self._at_hand.values(live)]
        new = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        entries: dict[bytes, bytes | None] = dict.fromkeys(self._encoded(old))
        entries.update(self._entries(new))
        self._rows.put(entries.items())
        self._due.replace(self._due_keys(old), self._due_keys(new))

    def load(self, rows: pa.RecordBatch) -> None:
        """See `RowTable`."""
        self._rows.load(self._entries(rows))
        self._due.load(self._due_keys(rows))

    def scan(self) -> Iterator[Slots]:
        """See `RowTable`. Rows written by this call come from the call's writes."""
        written = dict(self._rows.written)
        for entries in self._database.scan():
            mine = [
                (k, written.pop(k, v)) for k, v in entries if k[2:].startswith(self._keys.state)
            ]
            pairs = [(key, value) for key, value in mine if value is not None]
            if pairs:
                yield self._anew(pairs)
        new = [(key, value) for key, value in written.items() if value is not None]
        if new:
            yield self._anew(new)

    @property
    def is_written(self) -> bool:
        """Whether this call has written."""
        return any(space.is_written for space in self.spaces)

    def stage(self) -> None:
        """Hand the writes to the database, just before its commit. Owner thread."""
        for space in self.spaces:
            space.stage()

    def due(self, until_ns: int, rows_max: int) -> tuple[Slots, bool]:
        """See `DueTable`."""
        due, done = self._due.due(until_ns, rows_max)
        if not due:
            return self._no_slots, done
        _, columns, groups = self._due.columns(due)
        keys = self._keys.encode(columns, groups)
        values = self._rows.get(keys)
        pairs = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        assert len(pairs) == len(keys), "a row that is due does not exist"
        return self._bring(pairs), done

    def passed(self, slots: Slots) -> None:
        """See `DueTable`."""
        self.keep(slots)

    def _anew(self, pairs: Sequence[Pair]) -> Slots:
        self.begin()
        return self._bring(pairs)

    def _load(self, slots: Slots, rows: pa.RecordBatch) -> None:
        super()._load(slots, rows)
        self._read = (slots, rows)

    def _due_keys(self, rows: pa.RecordBatch) -> list[bytes]:
        columns = rows.columns[: self._named]
        return self._due.keys(self._rows_due.due_at(rows), columns, self._groups_of(columns))
