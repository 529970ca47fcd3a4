"""Keyed state of one operator in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from ...contract.operators import (
    DatabaseSnapshot,
    RestoredDatabase,
    RestoredState,
    StateKind,
    StateSnapshot,
)
from ..backend import DueRowsAtHand, RowsAtHand
from ..types import Cell, Key
from .records import HeapRecords
from .rows import HeapDueRows, HeapRows
from .values import HeapValues


class HeapBackend:
    """See `KeyedBackend`."""

    def __init__(self, max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        #: By state, what freezes it; the result makes its table.
        self._freezes: dict[str, Callable[[], Callable[[], pa.Table]]] = {}
        self._tables: list[HeapRows | HeapRecords] = []

    def values(
        self,
        name: str,
        keys: Sequence[pa.Field],
        type_: pa.DataType,
        from_arrow: Callable[[Cell], Cell],
    ) -> HeapValues:
        """See `KeyedBackend`."""
        values = HeapValues()
        schema = pa.schema([*keys, pa.field(name, type_)])
        self._freezes[name] = lambda: values.freeze(schema, self._max_parallelism)
        return values

    def rows(self, at_hand: RowsAtHand) -> HeapRows:
        """See `KeyedBackend`."""
        return self._added(at_hand, HeapRows(at_hand, self._max_parallelism))

    def due_rows(self, at_hand: DueRowsAtHand) -> HeapDueRows:
        """See `KeyedBackend`."""
        table = HeapDueRows(at_hand, self._max_parallelism)
        self._added(at_hand, table)
        return table

    def records(
        self,
        name: str,
        schema: pa.Schema,
        keys: Sequence[str],
        kept_ns: int | None,
        *,
        unmatched: bool,
    ) -> HeapRecords:
        """See `KeyedBackend`."""
        table = HeapRecords(schema, keys, kept_ns, self._max_parallelism, unmatched=unmatched)
        self._freezes[name] = table.freeze
        self._tables.append(table)
        return table

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Tables are restored, not databases."""
        return False

    def restore_own(self, states: Iterable[RestoredState]) -> None:
        """There are none."""

    def begin(self) -> None:
        """Rows stay at hand."""

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Values are in memory."""

    def commit(self) -> None:
        """Publish changed rows; values are published by `merge`."""
        for table in self._tables:
            table.commit()

    def snapshot(self) -> list[StateSnapshot]:
        """Copy every table."""
        return [
            StateSnapshot(name, StateKind.KEYED, freeze()) for name, freeze in self._freezes.items()
        ]

    def freeze_database(self) -> DatabaseSnapshot | None:
        """There is no database."""
        return None

    def close(self) -> None:
        """Do nothing: memory is all."""

    def _added(self, at_hand: RowsAtHand, table: HeapRows) -> HeapRows:
        self._freezes[at_hand.layout.name] = table.freeze
        self._tables.append(table)
        return table
