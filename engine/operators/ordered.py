"""First and last values per slot, by the order of arrival or of a column, as columns of state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..contract.user_code import cells_of
from ..state.arrays import Mask, Values, from_values, is_word_type, validity, values
from ..state.columns import StateColumn
from ..state.slots import Slots

_BOOL = np.dtype(np.bool_)
_OBJECT = np.dtype(object)


class OrderedAccumulator:
    """Keeps the first or the last value; null before the first value. No Python runs per record
    but to make objects of text, bytes and nested values.

    With `by` a record is a struct of value and place, of equal places the first that came is the
    first, and state is value, seen, place. Without, records are in the order of arrival.
    """

    def __init__(
        self, name: str, type_: pa.DataType, by: pa.DataType | None, *, last: bool
    ) -> None:
        self._last = last
        self._type = type_
        self._by = by
        self._plain = is_word_type(type_)
        dtype = values(pa.array([], type_)).dtype if self._plain else _OBJECT
        self._held = StateColumn(dtype, 0 if self._plain else None)
        self._seen = StateColumn(_BOOL, False)
        self.columns: tuple[StateColumn, ...] = (self._held, self._seen)
        self.fields: tuple[pa.Field, ...] = (
            pa.field(name, type_),
            pa.field(f"{name}.seen", pa.bool_(), nullable=False),
        )
        if by is not None:
            self._place = StateColumn(values(pa.array([], by)).dtype, 0)
            self.columns += (self._place,)
            self.fields += (pa.field(f"{name}.by", by, nullable=False),)

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Take the values, but nulls and values without a place."""
        assert array is not None, "first and last have a column"
        value, place = (array, None) if self._by is None else array.flatten()
        valid = validity(value)
        places = None
        if place is not None:
            places = values(place)
            valid = _both(valid, validity(place), _numbers(places))
        self._take(slots, self._values(value), places, valid)

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Take the other aggregates' values by their places."""
        assert self._by is not None, "aggregates are merged by a column"
        held, seen, places = state
        self._take(slots, held, places, seen)

    def result(self, state: Sequence[Values]) -> pa.Array:
        """The values."""
        if self._plain:
            return from_values(state[0], self._type, state[1])
        return pa.array(state[0].tolist(), self._type)

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """Values, whether there are values, and places."""
        stored = [self.result(state), pa.array(state[1])]
        return stored if self._by is None else [*stored, from_values(state[2], self._by)]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back the values and their places."""
        self._held.load(slots, self._values(arrays[0]))
        self._seen.load(slots, values(arrays[1]).astype(np.bool_))
        if self._by is not None:
            self._place.load(slots, values(arrays[2]))

    def _values(self, array: pa.Array) -> Values:
        return values(array) if self._plain else np.fromiter(cells_of(array), _OBJECT, len(array))

    def _take(self, slots: Slots, found: Values, places: Values | None, valid: Mask | None) -> None:
        if valid is not None:
            slots, found = slots[valid], found[valid]
            places = None if places is None else places[valid]
        rows = self._in_order(slots, places)
        if len(rows) < len(slots) or places is not None or not self._last:
            slots, found = slots[rows], found[rows]
        self._held.working[slots] = found
        self._seen.working[slots] = True
        if places is not None:
            self._place.working[slots] = places[rows]

    def _in_order(self, slots: Slots, places: Values | None) -> Slots:
        """The rows that may replace what is held; of several rows of a slot, the one to be kept is
        the last.
        """
        unseen = ~self._seen.working[slots]
        if places is None:
            return np.arange(len(slots)) if self._last else unseen.nonzero()[0][::-1]
        held = self._place.working[slots]
        better = places >= held if self._last else places < held
        rows: Slots = (unseen | better).nonzero()[0]
        rows = rows[np.argsort(places[rows], kind="stable")]
        return rows if self._last else rows[::-1]


def _both(*masks: Mask | None) -> Mask | None:
    """All of these hold; None: always."""
    stated = [mask for mask in masks if mask is not None]
    return np.logical_and.reduce(stated) if stated else None


def _numbers(places: Values) -> Mask | None:
    """Which places have an order: NaN has none."""
    return ~np.isnan(places) if places.dtype.kind == "f" else None
