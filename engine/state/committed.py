"""What is committed of a declared state, by key: what a backend is asked for, and the way of the heap.

A committed value is never changed in place. That is what lets a snapshot copy the dictionary and not what is in it.

Not here: the writes of the running work, which lie over it (`keyed.py`), and what lies in a database (`rocks_keyed.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from .tables import keyed_table

#: A key as users see it: the value of the key column, or a tuple for several.
Key = Any

#: Rows of state made into Arrow at a time: the GIL is held for no longer than one of these takes.
_CHUNK_ROWS = 4096


class Mark:
    """A value that no state can hold."""


#: No state; in the writes, for a key whose state was cleared.
ABSENT: Any = Mark()


class Committed(Protocol):
    """The committed values of one state, by key. What it gives must not be changed in place, nor what it is given."""

    def get(self, key: Key, default: Any = None, /) -> Any:
        """The value, or `default`. Subtask thread."""
        ...

    def merge(self, written: dict[Key, Any]) -> None:
        """Take over the writes of the work that ended; `ABSENT` removes. Owner thread."""
        ...

    def load(self, items: Iterable[tuple[Key, Any]]) -> None:
        """Take restored values."""
        ...

    def some(self, count: int) -> tuple[list[tuple[Key, Any]], bool]:
        """Look at the next keys, about `count`, on a round through all. Returns them and whether the round is over. Subtask thread."""
        ...


class HeapCommitted(dict[Key, Any]):
    """Committed values in memory."""

    #: What is left of the present round.
    _round: Iterator[Key] | None = None

    def merge(self, written: dict[Key, Any]) -> None:
        """See `Committed`."""
        self.update(written)
        if ABSENT in written.values():
            for key in [key for key, value in written.items() if value is ABSENT]:
                del self[key]

    def load(self, items: Iterable[tuple[Key, Any]]) -> None:
        """See `Committed`."""
        self.update(items)

    def some(self, count: int) -> tuple[list[tuple[Key, Any]], bool]:
        """See `Committed`. A round begins with a copy of the keys, since the dictionary changes meanwhile."""
        if self._round is None:
            self._round = iter(list(self))
        keys = list(islice(self._round, count))
        over = len(keys) < count
        if over:
            self._round = None
        return [(key, self[key]) for key in keys if key in self], over

    def freeze(self, schema: pa.Schema, max_parallelism: int) -> Callable[[], pa.Table]:
        """Copy the dictionary; the result makes the table: key columns, and the state as the last one. Owner thread."""
        frozen = self.copy()
        return lambda: _table(frozen, schema, max_parallelism)


def _table(frozen: dict[Key, Any], schema: pa.Schema, max_parallelism: int) -> pa.Table:
    keys, values = list(frozen), list(frozen.values())
    names = schema.names[:-1]
    batches = []
    for first in range(0, len(keys), _CHUNK_ROWS):
        some = keys[first : first + _CHUNK_ROWS]
        columns = (
            [some] if len(names) == 1 else [list(column) for column in zip(*some, strict=True)]
        )
        columns.append([to_arrow(v) for v in values[first : first + _CHUNK_ROWS]])
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    whole = pa.concat_batches(batches) if batches else empty
    return keyed_table(whole, names, max_parallelism)


def to_arrow(value: Any) -> Any:
    """Maps are lists of pairs to Arrow."""
    return list(value.items()) if isinstance(value, dict) else value
