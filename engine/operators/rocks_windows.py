"""Windows that lie in RocksDB: a row for each window of each key, and an index that tells which is due when.

The windows that a batch may touch are read at once into an otherwise empty `WindowStore`, where the operator works on them as it
does in memory; those that changed are written back. So memory holds the windows of one batch, or of one slice of those that fire.

A window is due when it fires and then, with lateness, when it is dropped. What is due is found by the index, in order of time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.channels.keygroups import KeyGroups, key_group_range, key_groups

from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    StateLayout,
)
from ..state.arrays import Mask
from ..state.rocks.codecs import KeyCodec
from ..state.rocks.database import RocksDatabase
from ..state.rocks.due import DueIndex
from ..state.rocks.files import Entry
from ..state.rocks.rows import RocksRows
from ..state.rocks.values import value_codec
from .backends import take_over
from .window_store import DUE_SUFFIX, END, FIRED, START
from .windows import Times, times_of

_WORD_BYTES = 9


class RocksWindows:
    """The windows of one subtask.

    Args:
        database: may hold other states as well.
        schema: of the rows: key columns, bounds, whether it has fired, aggregates (`WindowStore.schema`).
        keys: how many key columns there are.
        lateness_ns: for how long beyond its end a window is kept.
    """

    def __init__(
        self,
        database: RocksDatabase,
        state: str,
        schema: pa.Schema,
        keys: int,
        lateness_ns: int,
        context: OperatorContext,
    ) -> None:
        self._schema = schema
        self._operator = context.operator
        self._lateness_ns = lateness_ns
        self._max_parallelism = context.max_parallelism
        named = list(schema)[: keys + 1]
        self._names = [field.name for field in named]
        self._database = database
        self._rows = RocksRows(self._database, StateLayout(state, keys + 1, schema))
        groups = key_group_range(context.max_parallelism, context.parallelism, context.index)
        name = state + DUE_SUFFIX
        self._due = DueIndex(self._database, name, named, groups, context.max_parallelism)
        self._keys = KeyCodec(state, named, context.max_parallelism)
        self._values = value_codec(list(schema)[keys + 1 :])

    # --- the subtask's thread -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a batch or a slice: apply what earlier calls wrote."""
        if not self._rows.is_written and not self._due.rows.is_written:
            self._database.settle()

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Begin with these; False: their tables are wanted instead."""
        return take_over(self._database, databases, self.layouts)

    @property
    def layouts(self) -> dict[str, StateLayout]:
        """Its states, by name."""
        return {rows.layout.name: rows.layout for rows in (self._rows, self._due.rows)}

    def load(self, batch: pa.RecordBatch) -> None:
        """Take back rows of a table; they count as committed."""
        self._rows.load(self._entries(batch))
        self._due.load(self._due_keys(batch))

    def sample(self) -> pa.RecordBatch | None:
        """Some windows out of those that were restored; None: there is none."""
        lower, upper = b"", b"\xff\xff"
        for key, value in self._rows.range(self._rows.cursor(), lower, upper):
            if key[2:].startswith(self._keys.state):
                return self._decoded([key], [value])
        return None

    def find(self, keys: Sequence[pa.Array], starts: pa.Array) -> pa.RecordBatch:
        """Read the windows with these keys and starts, as far as they exist."""
        groups = self._groups_of(keys)
        wanted = self._keys.encode([*keys, starts], groups)
        found = zip(wanted, self._rows.get(wanted), strict=True)
        pairs = [(key, value) for key, value in found if value is not None]
        return self._decoded([key for key, _ in pairs], [value for _, value in pairs])

    def of_keys(self, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Read all windows of these keys, which are distinct."""
        starts = pa.nulls(len(keys[0]), self._schema.field(START).type)
        cursor = self._rows.cursor()
        pairs: list[tuple[bytes, bytes]] = []
        for key in sorted(self._keys.encode([*keys, starts], self._groups_of(keys))):
            of_key = key[:-_WORD_BYTES]
            pairs += self._rows.range(cursor, of_key + b"\1", of_key + b"\2")
        return self._decoded([key for key, _ in pairs], [value for _, value in pairs])

    def replace(self, old: pa.RecordBatch, new: pa.RecordBatch) -> None:
        """Write `new` instead of `old`, which was read."""
        entries: dict[bytes, bytes | None] = dict.fromkeys(self._encoded(old))
        entries.update(self._entries(new))
        self._rows.put(entries.items())
        self._due.replace(self._due_keys(old), self._due_keys(new))

    def due(self, watermark_ns: int, rows_max: int) -> tuple[pa.RecordBatch, bool]:
        """Take out what is due, `rows_max` windows at most: keep those that fire for their lateness, drop the others.

        Returns: the windows that fire, those that end first at the front; whether nothing more is due.
        """
        due, done = self._due.due(watermark_ns, rows_max)
        _, columns, groups = self._due.columns(due)
        keys = self._keys.encode(columns, groups)
        values = [value for value in self._rows.get(keys) if value is not None]
        assert len(values) == len(keys), "a window that is due does not exist"
        rows = self._decoded(keys, values)
        firing = rows.filter(pa.array(~_fired(rows)))
        position = self._schema.get_field_index(FIRED)
        fired = firing.set_column(
            position, self._schema.field(position), pa.array(np.ones(firing.num_rows, np.bool_))
        )
        kept = fired.filter(pa.array(self._due_at(fired) > watermark_ns))
        entries: list[Entry] = [(key, None) for key in keys]
        self._rows.put(entries)
        self._rows.put(self._entries(kept))
        self._due.replace(due, self._due_keys(kept))
        return firing, done

    # --- the owner thread ---------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make a layer of what was written."""
        self._rows.stage()
        self._due.rows.stage()
        self._database.commit()

    def snapshot(self) -> DatabaseSnapshot:
        """Freeze the database."""
        return self._database.snapshot()

    def close(self) -> None:
        """Remove the database."""
        self._database.close()

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _groups_of(self, keys: Sequence[pa.Array]) -> KeyGroups:
        names = self._names[:-1]
        batch = pa.RecordBatch.from_arrays(list(keys), names=names)
        return key_groups(batch, names, self._max_parallelism)

    def _encoded(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = batch.columns[: len(self._names)]
        return self._keys.encode(columns, self._groups_of(columns[:-1]))

    def _entries(self, batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
        values = self._values.encode(batch.columns[len(self._names) :])
        return list(zip(self._encoded(batch), values, strict=True))

    def _due_keys(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = batch.columns[: len(self._names)]
        return self._due.keys(self._due_at(batch), columns, self._groups_of(columns[:-1]))

    def _due_at(self, batch: pa.RecordBatch) -> Times:
        """When a window fires or, if it has, when it is dropped."""
        last = times_of(batch, END, self._operator) - 1
        at: npt.NDArray[np.int64] = np.where(_fired(batch), last + self._lateness_ns, last)
        return at

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        columns = [*self._keys.decode(keys), *self._values.decode(values)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _fired(batch: pa.RecordBatch) -> Mask:
    found: Mask = batch.column(FIRED).to_numpy(zero_copy_only=False)
    return found
