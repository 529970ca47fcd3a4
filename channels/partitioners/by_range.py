"""By range: records to the consumer of the range that holds a column's value.

Boundaries are kept as text and read as the column's type when a batch is routed: text stays equal
between programs, travels in checkpoint metadata, and Arrow reads back exactly the value it wrote.

Nulls and NaN have no place in the order; both belong to the last range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .partitioner import Affinity, Partitioner, Redistribution, Router
from .slices import Targets, narrow


@dataclass(frozen=True, slots=True)
class ByRange(Partitioner):
    """Contiguous ranges of a column's values to each consumer, in order.

    A range begins at its boundary: with boundaries 10 and 20 the ranges are below 10, from 10 to
    below 20, and from 20. More consumers than ranges leave some consumers without records.

    Attributes:
        column: the column whose values are compared.
        boundaries: between neighbouring ranges, rising, as text. `over` makes them of values.
    """

    name: ClassVar[str] = "range"
    affinity: ClassVar = Affinity.RECORD
    redistribution: ClassVar = Redistribution.FILTER
    column: str
    boundaries: tuple[str, ...]

    @classmethod
    def over(cls, schema: pa.Schema, column: str, boundaries: Iterable[object]) -> ByRange:
        """Make the partitioner of a column of `schema`.

        Raises: TypeError or ValueError with one sentence, where the boundaries are none of the
            column's type, or do not rise.
        """
        type_ = schema.field(column).type
        values = _as_type(boundaries, type_, f"column {column!r}")
        return cls(column, tuple(values.cast(pa.string()).to_pylist()))

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.boundaries

    @classmethod
    def restored(
        cls, key_columns: tuple[str, ...], parameters: tuple[str, ...], max_parallelism: int
    ) -> Partitioner:
        (column,) = key_columns
        return cls(column, parameters)

    def router(self, consumers: int) -> Router:
        ranges = len(self.boundaries) + 1
        #: {range: consumer}.
        owner_of = narrow(np.arange(ranges) * consumers // ranges, consumers)

        def route(batch: pa.RecordBatch) -> Targets:
            values = batch.column(self.column)
            boundaries = pa.array(self.boundaries, pa.string()).cast(values.type)
            targets: Targets = owner_of.take(_ranges(values, boundaries))
            return targets

        return route


def _ranges(values: pa.Array, boundaries: pa.Array) -> npt.NDArray[np.int64]:
    """Return the range of every value: the number of boundaries that do not exceed it.

    A binary search of all values at once, by Arrow's own comparison, which every type here has.
    """
    found = np.zeros(len(values), np.int64)
    step = 1 << len(boundaries).bit_length() - 1
    while step:
        probe = found + step
        inside = probe <= len(boundaries)
        boundary = boundaries.take(pa.array(np.where(inside, probe, 1) - 1))
        reached = pc.fill_null(pc.greater_equal(values, boundary), False)
        found = np.where(inside & reached.to_numpy(zero_copy_only=False), probe, found)
        step >>= 1
    unordered = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    found[unordered] = len(boundaries)
    return found


def _as_type(boundaries: Iterable[object], type_: pa.DataType, subject: str) -> pa.Array:
    """Boundaries as a rising array of `type_`. Raises: TypeError, ValueError."""
    kind = _kind(type_)
    if kind is None:
        raise TypeError(
            f"{subject} is {type_}; ranges are of numbers, dates, timestamps or strings"
        )
    stated = _array(boundaries)
    if not len(stated):
        raise ValueError("boundaries are empty; state at least one")
    if _kind(stated.type) != kind:
        raise TypeError(f"boundaries are {stated.type}, and {subject} is {type_}")
    if pc.any(pc.is_null(stated, nan_is_null=True)).as_py():
        raise ValueError("boundaries hold null or NaN, which nothing can be compared with")
    try:
        values = stated.cast(type_)
    except pa.ArrowInvalid as error:
        raise ValueError(f"boundaries are not values of {subject}, {type_}: {error}") from None
    for at, falls in enumerate(pc.greater_equal(values[:-1], values[1:]).to_pylist()):
        if falls:
            raise ValueError(f"boundaries must rise: {values[at + 1]} comes after {values[at]}")
    return values


def _array(boundaries: Iterable[object]) -> pa.Array:
    if isinstance(boundaries, str | bytes):
        raise TypeError(f"boundaries are a sequence of values, not {boundaries!r}")
    try:
        values = list(boundaries)
        try:
            return pa.array(values)
        except OverflowError:
            # Beyond int64, as which Arrow takes all integers.
            return pa.array(values, pa.uint64())
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise TypeError(f"boundaries {boundaries!r} are not values of one type: {error}") from None


def _kind(type_: pa.DataType) -> str | None:
    """Types of a kind can be cast to each other; None: values have no order that is known here."""
    if pa.types.is_float16(type_):
        return None
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_date(type_):
        return "date"
    if pa.types.is_timestamp(type_):
        return "local time" if type_.tz is None else "time"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "string"
    return None
