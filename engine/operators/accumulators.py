"""Running aggregates, one per slot, as columns of state.

An accumulator's state columns are the running value, and most often whether (or how often) a value
came. `add` is a few NumPy scatters over the batch, `stage` remembers the changed slots, `result`
turns values into the emitted column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..contract.user_code import cells_of
from ..state.arrays import Mask, Values, from_values, is_word_type, validity, values
from ..state.columns import StateColumn
from ..state.slots import Slots
from .aggregations import Aggregation, AggregationKind, result_type
from .custom import CustomAccumulator
from .gathered import GatheringAccumulator, distinct, quantile_of
from .ordered import OrderedAccumulator

_INT64_MAX = (1 << 63) - 1
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


class Accumulator(Protocol):
    """One aggregation of one operator."""

    @property
    def columns(self) -> Sequence[StateColumn]:
        """The accumulator's state."""
        ...

    @property
    def fields(self) -> Sequence[pa.Field]:
        """Names and types of the columns that `store` makes."""
        ...

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Take the rows of one batch into the working values. Raises: OverflowError."""
        ...

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Merge other aggregates.

        Args:
            state: values of `columns`, one row for each of `slots`.

        Raises: OverflowError.
        """
        ...

    def result(self, state: Sequence[Values]) -> pa.Array:
        """Make the emitted column from values of `columns`."""
        ...

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """Make the columns of a snapshot, one per field, from values of `columns`."""
        ...

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Restore the columns that `store` made."""
        ...


def accumulator(name: str, aggregation: Aggregation, schema_in: pa.Schema) -> Accumulator:
    """Make the accumulator of an aggregation whose result column is `name`.

    Raises: UserError as `result_type` does.
    """
    type_ = result_type(aggregation, schema_in)
    kind = aggregation.kind
    if kind is AggregationKind.COUNT:
        return CountAccumulator(name)
    if aggregation.custom is not None:
        return CustomAccumulator(name, aggregation.custom, len(aggregation.sources))
    source = schema_in.field(aggregation.column).type
    if kind is AggregationKind.FIRST or kind is AggregationKind.LAST:
        by = None if aggregation.by is None else schema_in.field(aggregation.by).type
        return OrderedAccumulator(name, type_, by, last=kind is AggregationKind.LAST)
    if kind is AggregationKind.COUNT_DISTINCT:
        return GatheringAccumulator(name, source, type_, distinct, len)
    if kind is AggregationKind.COLLECT_LIST:
        return GatheringAccumulator(name, source, type_, tuple, list)
    if kind is AggregationKind.QUANTILE:
        return GatheringAccumulator(name, source, type_, tuple, quantile_of(aggregation.share))
    if pa.types.is_decimal(source) or not is_word_type(source):
        return ObjectAccumulator(name, type_, _combination(kind, type_))
    if kind is AggregationKind.SUM:
        return SumAccumulator(name, type_)
    if kind is AggregationKind.MEAN:
        return MeanAccumulator(name, source)
    return ExtremeAccumulator(name, type_, smallest=kind is AggregationKind.MIN)


class CountAccumulator:
    """Counts rows, or non-null values."""

    def __init__(self, name: str) -> None:
        self._count = StateColumn(_INT64, 0)
        self.columns = (self._count,)
        self.fields = (pa.field(name, pa.int64(), nullable=False),)

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Count each row once; with `array`, count only valid rows."""
        valid = None if array is None else validity(array)
        np.add.at(self._count.working, slots if valid is None else slots[valid], 1)

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Add the counts."""
        np.add.at(self._count.working, slots, state[0])

    def result(self, state: Sequence[Values]) -> pa.Array:
        """The counts."""
        return pa.array(state[0])

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """The counts."""
        return [pa.array(state[0])]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back the counts."""
        self._count.load(slots, values(arrays[0]))


class Total:
    """Sums per slot: float64, or int64 with a check against overflow.

    Checking each addition would double the cost. Instead `Total` keeps a bound on every sum. The
    bound grows with each batch by rows times largest value; only when the bound leaves the range
    does `Total` look at the sums.
    """

    def __init__(self, *, integers: bool) -> None:
        self.column = StateColumn(_INT64 if integers else _FLOAT64, 0)
        self._integers = integers
        #: No working value is larger than this, up to sign.
        self._bound = 0

    def add(self, slots: Slots, array: pa.Array, valid: Mask | None) -> None:
        """Add the valid rows. Raises: OverflowError, before anything is added."""
        numbers = values(array)
        if valid is not None:
            slots, numbers = slots[valid], numbers[valid]
        self.merge(slots, numbers)

    def merge(self, slots: Slots, numbers: Values) -> None:
        """Add each number to its slot. Raises: OverflowError, before any addition."""
        if self._integers:
            self._check(slots, numbers)
            numbers = numbers.astype(np.int64, copy=False)
        else:
            numbers = numbers.astype(np.float64, copy=False)
        np.add.at(self.column.working, slots, numbers)

    def load(self, slots: Slots, array: pa.Array) -> None:
        """Take back sums of a snapshot."""
        numbers = values(array)
        self.column.load(slots, numbers)
        if self._integers and len(numbers):
            self._bound = max(self._bound, _largest(numbers))

    def _check(self, slots: Slots, numbers: Values) -> None:
        if not len(numbers):
            return
        more = len(numbers) * _largest(numbers)
        if self._bound + more > _INT64_MAX:
            self._bound = _largest(self.column.working)
        if self._bound + more > _INT64_MAX:
            self._check_exactly(slots, numbers)
            self._bound = _INT64_MAX
        else:
            self._bound += more

    def _check_exactly(self, slots: Slots, numbers: Values) -> None:
        """Add up in Python's integers, which have no range: rare, and exact."""
        totals: dict[int, int] = {}
        for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
            totals[slot] = totals.get(slot, 0) + number
        for slot, more in totals.items():
            total = int(self.column.working[slot]) + more
            if not -_INT64_MAX - 1 <= total <= _INT64_MAX:
                raise OverflowError(f"a sum reached {total}, outside the range of int64")


class SumAccumulator:
    """Sums numbers; null before the first number."""

    def __init__(self, name: str, type_: pa.DataType) -> None:
        self._total = Total(integers=pa.types.is_integer(type_))
        self._seen = StateColumn(_BOOL, False)
        self._type = type_
        self.columns = (self._total.column, self._seen)
        self.fields = (pa.field(name, type_),)

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Add the non-null values."""
        assert array is not None, "a sum has a column"
        valid = validity(array)
        self._total.add(slots, array, valid)
        self._seen.working[slots if valid is None else slots[valid]] = True

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Add the sums; an empty sum is 0."""
        self._total.merge(slots, state[0])
        self._seen.working[slots[state[1]]] = True

    def result(self, state: Sequence[Values]) -> pa.Array:
        """The sums."""
        return from_values(state[0], self._type, state[1])

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """The sums."""
        return [self.result(state)]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back the sums."""
        self._total.load(slots, arrays[0])
        self._seen.load(slots, _seen(arrays[0]))


class MeanAccumulator:
    """Keeps sum and count of the non-null values; the sum of uint64, which int64 cannot hold, as a
    float.
    """

    def __init__(self, name: str, source: pa.DataType) -> None:
        integers = pa.types.is_integer(source) and not pa.types.is_uint64(source)
        self._total = Total(integers=integers)
        self._count = StateColumn(_INT64, 0)
        self._type = pa.int64() if integers else pa.float64()
        self.columns = (self._total.column, self._count)
        self.fields = (
            pa.field(f"{name}.sum", self._type, nullable=False),
            pa.field(f"{name}.count", pa.int64(), nullable=False),
        )

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Add and count the non-null values."""
        assert array is not None, "a mean has a column"
        valid = validity(array)
        self._total.add(slots, array, valid)
        np.add.at(self._count.working, slots if valid is None else slots[valid], 1)

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Add sums and counts."""
        self._total.merge(slots, state[0])
        np.add.at(self._count.working, slots, state[1])

    def result(self, state: Sequence[Values]) -> pa.Array:
        """Sum by count; null where the count is 0."""
        total, count = state
        return from_values(total / np.maximum(count, 1), pa.float64(), count > 0)

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """Sum and count."""
        return [from_values(state[0], self._type), pa.array(state[1])]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back sum and count."""
        self._total.load(slots, arrays[0])
        self._count.load(slots, values(arrays[1]))


class ExtremeAccumulator:
    """Keeps the smallest or largest value; null before the first value."""

    def __init__(self, name: str, type_: pa.DataType, *, smallest: bool) -> None:
        dtype = values(pa.array([], type_)).dtype
        # `fmin` and `fmax` prefer any number to NaN; on integers they are the plain minimum and
        # maximum.
        self._ufunc: np.ufunc = np.fmin if smallest else np.fmax
        if dtype.kind == "f":
            self._best = StateColumn(_FLOAT64, float("nan"))
        else:
            limits = np.iinfo(dtype)
            self._best = StateColumn(dtype, limits.max if smallest else limits.min)
        self._seen = StateColumn(_BOOL, False)
        self._type = type_
        self.columns = (self._best, self._seen)
        self.fields = (pa.field(name, type_),)

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Take the non-null values."""
        assert array is not None, "an extreme has a column"
        found = values(array).astype(self._best.working.dtype, copy=False)
        valid = validity(array)
        if valid is not None:
            slots, found = slots[valid], found[valid]
        self._ufunc.at(self._best.working, slots, found)
        self._seen.working[slots] = True

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Merge the other extremes; an empty extreme holds the fill value, which always loses."""
        self._ufunc.at(self._best.working, slots, state[0])
        self._seen.working[slots[state[1]]] = True

    def result(self, state: Sequence[Values]) -> pa.Array:
        """The extremes."""
        return from_values(state[0], self._type, state[1])

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """The extremes."""
        return [self.result(state)]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back the extremes, but leave the fill value where there is none yet."""
        seen = _seen(arrays[0])
        self._seen.load(slots, seen)
        self._best.load(slots[seen], values(arrays[0])[seen])


class ObjectAccumulator:
    """Keeps a value that NumPy cannot combine: text, bytes, decimals. One Python call a record."""

    def __init__(
        self, name: str, type_: pa.DataType, combine: Callable[[Any, Any], object]
    ) -> None:
        """`combine` joins two values of a slot. Raises: OverflowError."""
        self._combine = combine
        self._held = StateColumn(np.dtype(object), None)
        self._type = type_
        self.columns = (self._held,)
        self.fields = (pa.field(name, type_),)

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Combine the non-null values with those of their slots."""
        assert array is not None, "such an aggregation has a column"
        self._take(slots, cells_of(array))

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Combine the values; an empty one is None."""
        self._take(slots, state[0].tolist())

    def result(self, state: Sequence[Values]) -> pa.Array:
        """The values; null before the first."""
        return pa.array(state[0].tolist(), self._type)

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """The values."""
        return [self.result(state)]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take back the values."""
        self._held.load(slots, np.array(arrays[0].to_pylist(), object))

    def _take(self, slots: Slots, cells: Sequence[object]) -> None:
        working, combine = self._held.working, self._combine
        for slot, cell in zip(slots.tolist(), cells, strict=True):
            if cell is not None:
                held = working[slot]
                working[slot] = cell if held is None else combine(held, cell)


def _combination(kind: AggregationKind, type_: pa.DataType) -> Callable[[Any, Any], object]:
    if kind is AggregationKind.MIN:
        return min
    return max if kind is AggregationKind.MAX else _decimal_sum(type_)


def _decimal_sum(type_: pa.DataType) -> Callable[[Any, Any], object]:
    #: Exact for all digits of the widest type; Python's own context rounds to 28.
    exact = Context(prec=2 * type_.precision)
    limit = Decimal(10) ** (type_.precision - type_.scale)

    def add(left: Decimal, right: Decimal) -> Decimal:
        total = exact.add(left, right)
        if not -limit < total < limit:
            raise OverflowError(f"a sum reached {total}, outside the range of {type_}")
        return total

    return add


def _seen(array: pa.Array) -> Mask:
    valid = validity(array)
    return np.ones(len(array), np.bool_) if valid is None else valid


def _largest(numbers: Values) -> int:
    """Largest absolute value, as a Python integer, which cannot overflow."""
    return max(int(numbers.max()), -int(numbers.min()))
