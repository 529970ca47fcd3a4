"""Aggregations that hold every value, or every different value, of a slot.

What a slot holds is never changed: committed state shares it. So a batch copies what the slots that
it touches hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..contract.user_code import cells_of
from ..state.arrays import Values
from ..state.columns import StateColumn
from ..state.slots import Slots

#: The values of a slot.
Held = tuple[Any, ...]


class GatheringAccumulator:
    """Holds values per slot. One Python call a record.

    Args:
        held: makes what a slot holds of what it held and more.
        finish: makes the result of a slot.
    """

    def __init__(
        self,
        name: str,
        source: pa.DataType,
        type_: pa.DataType,
        held: Callable[[Iterable[Any]], Held],
        finish: Callable[[Held], object],
    ) -> None:
        self._make = held
        self._finish = finish
        self._type = type_
        self._stored = pa.list_(source)
        self._held = StateColumn(np.dtype(object), None)
        self.columns = (self._held,)
        self.fields = (pa.field(name, self._stored, nullable=False),)

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Take the non-null values."""
        assert array is not None, "values are of a column"
        more: dict[int, list[Any]] = {}
        for slot, cell in zip(slots.tolist(), cells_of(array), strict=True):
            if cell is not None:
                more.setdefault(slot, []).append(_one_nan(cell))
        for slot, cells in more.items():
            self._extend(slot, cells)

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Take the other aggregates' values."""
        for slot, held in zip(slots.tolist(), state[0].tolist(), strict=True):
            if held is not None:
                self._extend(slot, held)

    def result(self, state: Sequence[Values]) -> pa.Array:
        """What the values amount to."""
        finish = self._finish
        return pa.array([finish(held or ()) for held in state[0]], self._type)

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """The values, in lists."""
        return [pa.array([held or () for held in state[0]], self._stored)]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back the values."""
        made = (self._make(map(_one_nan, cells)) for cells in arrays[0].to_pylist())
        self._held.load(slots, np.fromiter(made, np.dtype(object), len(slots)))

    def _extend(self, slot: int, more: Iterable[Any]) -> None:
        held = self._held.working[slot]
        self._held.working[slot] = self._make(more if held is None else [*held, *more])


def distinct(cells: Iterable[Any]) -> Held:
    """Each value once, in the order of arrival: snapshots of equal records are equal."""
    return tuple(dict.fromkeys(cells))


def quantile_of(share: float) -> Callable[[Held], float | None]:
    """The quantile of the numbers, interpolated; None: there are no numbers."""

    def finish(held: Held) -> float | None:
        return float(np.quantile(np.array(held, np.float64), share)) if held else None

    return finish


def _one_nan(cell: Any) -> Any:
    """The cell, or the one NaN that is equal to itself in a set."""
    return math.nan if isinstance(cell, float) and math.isnan(cell) else cell
