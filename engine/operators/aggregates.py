"""All aggregations of an operator side by side: each slot has one value per aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from ..contract.errors import UserCodeError
from ..state.arrays import Values
from ..state.slots import Slots
from .accumulators import Accumulator, accumulator
from .aggregations import Aggregation


class Aggregates:
    """Accumulators over one numbering of slots.

    Attributes:
        fields: of the accumulators in a snapshot.
    """

    def __init__(
        self, aggregations: Mapping[str, Aggregation], schema_in: pa.Schema, operator: str
    ) -> None:
        self._operator = operator
        self._sources = [aggregation.sources for aggregation in aggregations.values()]
        self._accumulators: list[Accumulator] = [
            accumulator(name, aggregation, schema_in) for name, aggregation in aggregations.items()
        ]
        self.fields = [field for a in self._accumulators for field in a.fields]
        #: The slots staged last, and their values: most often `results` asks for the same.
        self._staged: tuple[Slots, list[list[Values]]] | None = None

    def grow(self, count: int) -> None:
        """Make room for `count` slots."""
        for accumulated in self._accumulators:
            for column in accumulated.columns:
                column.grow(count)

    def add(self, slots: Slots, column: Callable[[str], pa.Array]) -> None:
        """Add each row to its slot; `column` returns the column of a name, as long as `slots`.

        Raises: UserCodeError when a sum of integers leaves the range of int64.
        """
        for source, accumulated in zip(self._sources, self._accumulators, strict=True):
            try:
                accumulated.add(slots, _joined(source, column))
            except OverflowError as error:
                raise self._overflow(accumulated, error) from error

    @property
    def size_bytes(self) -> int:
        """Memory of all values."""
        return sum(column.size_bytes for a in self._accumulators for column in a.columns)

    def clear(self, slots: Slots) -> None:
        """Empty these slots."""
        for accumulated in self._accumulators:
            for column in accumulated.columns:
                column.clear(slots)

    def merge(self, into: Slots, slots: Slots) -> None:
        """Take the aggregates of `slots` into others. Raises: UserCodeError as `add`."""
        for accumulated in self._accumulators:
            try:
                accumulated.merge(into, [c.working[slots] for c in accumulated.columns])
            except OverflowError as error:
                raise self._overflow(accumulated, error) from error

    def results(self, slots: Slots) -> list[pa.Array]:
        """Make the emitted columns of some slots from the working values."""
        if self._staged is not None and self._staged[0] is slots:
            state = self._staged[1]
        else:
            state = [[c.working[slots] for c in a.columns] for a in self._accumulators]
        return [a.result(values) for a, values in zip(self._accumulators, state, strict=True)]

    def stage(self, slots: Slots) -> None:
        """Note that these slots changed."""
        staged = [[column.stage(slots) for column in a.columns] for a in self._accumulators]
        self._staged = slots, staged

    def commit(self) -> None:
        """Publish the staged changes."""
        self._staged = None
        for accumulated in self._accumulators:
            for column in accumulated.columns:
                column.commit()

    def freeze(self, count: int) -> Callable[[], list[pa.Array]]:
        """Copy the committed values of the first `count` slots.

        The result makes the columns of `fields`, in any thread.
        """
        frozen = [[column.freeze(count) for column in a.columns] for a in self._accumulators]
        return lambda: _stored(self._accumulators, frozen)

    def working(self, slots: Slots) -> list[pa.Array]:
        """Make the columns of `fields` of some slots from the working values."""
        state = [[c.working[slots] for c in a.columns] for a in self._accumulators]
        return _stored(self._accumulators, state)

    def load(self, slots: Slots, columns: Iterable[pa.Array]) -> None:
        """Take back columns of `fields`."""
        given = iter(columns)
        for accumulated in self._accumulators:
            accumulated.load(slots, [next(given) for _ in accumulated.fields])

    def _overflow(self, accumulated: Accumulator, error: OverflowError) -> UserCodeError:
        index = self._accumulators.index(accumulated)
        return UserCodeError(
            self._operator,
            f"aggregation {accumulated.fields[0].name!r} of column {self._sources[index][0]!r}:"
            f" {error}; cast the column to "
            "float64 before",
        )


def _joined(sources: Sequence[str], column: Callable[[str], pa.Array]) -> pa.Array | None:
    """The column that an accumulator takes: none, one, or a struct of several."""
    if len(sources) <= 1:
        return column(sources[0]) if sources else None
    return pa.StructArray.from_arrays([column(name) for name in sources], names=list(sources))


def _stored(
    accumulators: Sequence[Accumulator], state: Sequence[Sequence[Values]]
) -> list[pa.Array]:
    return [array for a, s in zip(accumulators, state, strict=True) for array in a.store(s)]
