"""Broadcast state: a map that is equal in every subtask, because the same records change each copy.

Only processing a broadcast record changes the map; every call may read it. A checkpoint holds the
map once per subtask. Each new subtask takes one old subtask's copy, together with the rest of that
subtask's broadcast input. So all copies stay equal as long as the entries do not depend on the
order of records of *different* producers, which differs between subtasks.

Source: Flink's broadcast state pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pyarrow as pa

from .backend import ValueTable
from .keyed import OUTSIDE, CurrentKey, MapState
from .types import StateTypeError


class BroadcastState(MapState):
    """A dictionary that all keys share.

    Attributes:
        changeable: a record of the broadcast side is being processed.
    """

    changeable = False

    def bind(self, name: str, current: CurrentKey, committed: ValueTable) -> Self:
        """Make the empty state of an operator instance; all keys share it."""
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
        """Keep the committed dictionary, which never changes; the result makes the table.

        Owner thread.
        """
        entries: Any = self._committed.get(None, {})
        schema = self.schema

        def table() -> pa.Table:
            return pa.table([list(entries), list(entries.values())], schema=schema)

        return table

    def load_entries(self, table: pa.Table) -> None:
        """Take restored entries, as committed entries."""
        entries = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
        if entries:
            self._committed.load([(None, entries)])

    def _writable(self) -> dict[Any, Any]:
        self._check_changeable()
        return super()._writable()

    def _check_changeable(self) -> None:
        if self._current is OUTSIDE:
            self._read()  # says so
        if not self.changeable:
            raise StateTypeError(
                f"broadcast state {self._name!r} can be changed in process_broadcast only: it must"
                " stay equal in all subtasks"
            )


def broadcast_state(key_type: pa.DataType, value_type: pa.DataType) -> BroadcastState:
    """Declare a dictionary that all keys share, as a class attribute of a `BroadcastProcessor`."""
    return BroadcastState(key_type, value_type)
