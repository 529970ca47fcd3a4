"""Committed values of a declared state in memory: a dictionary.

A committed value is never changed in place, so a snapshot copies the dictionary without its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pyarrow as pa

from ..backend import ABSENT
from ..tables import table_of_items
from ..types import Cell, Key


class HeapValues(dict[Key, Cell]):
    """See `ValueTable`."""

    #: The rest of the present round.
    _round: Iterator[Key] | None = None

    def merge(self, written: dict[Key, Cell]) -> None:
        """See `ValueTable`."""
        self.update(written)
        if ABSENT in written.values():
            for key in [key for key, value in written.items() if value is ABSENT]:
                del self[key]

    def load(self, items: Iterable[tuple[Key, Cell]]) -> None:
        """See `ValueTable`."""
        self.update(items)

    def some(self, count: int) -> tuple[list[tuple[Key, Cell]], bool]:
        """See `ValueTable`.

        A round walks a copy of the keys, since the dictionary changes meanwhile.
        """
        if self._round is None:
            self._round = iter(list(self))
        keys = list(islice(self._round, count))
        over = len(keys) < count
        if over:
            self._round = None
        return [(key, self[key]) for key in keys if key in self], over

    def freeze(self, schema: pa.Schema, max_parallelism: int) -> Callable[[], pa.Table]:
        """Copy the dictionary; the result makes the table: key columns, then the state.

        Owner thread.
        """
        frozen = self.copy()
        return lambda: table_of_items(frozen.items(), schema, max_parallelism)
