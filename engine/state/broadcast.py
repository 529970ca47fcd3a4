"""Broadcast state: a map that is equal in every subtask, because every subtask gets the same records to change it by.

It is changed only while such a record is processed, and read at any time. A checkpoint holds it once per subtask, and each new subtask
takes one copy, together with what was left of that old subtask's broadcast input. So it stays equal as long as what is
written does not depend on the order in which records of *different* producers come in: that order is not the same everywhere.

Source: Flink's broadcast state pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pyarrow as pa

from .backend import ValueTable
from .keyed import CurrentKey, MapState
from .types import StateTypeError


class BroadcastState(MapState):
    """A dictionary that all keys share.

    Attributes:
        changeable: a record of the broadcast side is being processed.
    """

    changeable = False

    def bind(self, name: str, current: CurrentKey, committed: ValueTable) -> Self:
        """Make the empty state of one operator instance; whatever key is current, it is the same."""
        return super().bind(name, CurrentKey(), committed)

    @property
    def schema(self) -> pa.Schema:
        """Of a checkpoint's table: a row for each entry."""
        return pa.schema([("key", self._key_type), ("value", self._value_type)])

    def clear(self) -> None:
        """Forget all entries."""
        self._check_changeable()
        super().clear()

    def freeze_entries(self) -> Callable[[], pa.Table]:
        """Keep the committed dictionary, which is never changed; the result makes the table. Owner thread."""
        entries: Any = self._committed.get(None, {})
        schema = self.schema

        def table() -> pa.Table:
            return pa.table([list(entries), list(entries.values())], schema=schema)

        return table

    def load_entries(self, table: pa.Table) -> None:
        """Take back restored entries; they count as committed."""
        entries = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
        if entries:
            self._committed.load([(None, entries)])

    def _writable(self) -> dict[Any, Any]:
        self._check_changeable()
        return super()._writable()

    def _check_changeable(self) -> None:
        if not self.changeable:
            raise StateTypeError(
                f"broadcast state {self._name!r} can be changed in process_broadcast only: it must stay equal in all subtasks"
            )


def broadcast_state(key_type: pa.DataType, value_type: pa.DataType) -> BroadcastState:
    """Declare a dictionary that all keys share, as a class attribute of a `BroadcastProcessor`."""
    return BroadcastState(key_type, value_type)
