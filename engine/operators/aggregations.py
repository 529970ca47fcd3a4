"""Aggregations of a pipeline, as values, and the types of their results.

Aggregations skip nulls, as in SQL: over nulls alone counts are 0, lists are empty, and the others
are null. Sums of integers are int64, of decimals decimals of the most digits, both checked;
sums of floats are float64. Minimum and maximum also skip NaN where there is a number; text is
compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from headrace.channels.hashing import key_hashers
from headrace.channels.schemas import plain_type

from ..contract.errors import UserError
from ..state.arrays import is_word_type
from .custom import CustomAggregate, checked

_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


class AggregationKind(Enum):
    """The aggregation functions; the value is the function's name in the API."""

    SUM = "sum"
    COUNT = "count"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    FIRST = "first"
    LAST = "last"
    COUNT_DISTINCT = "count_distinct"
    COLLECT_LIST = "collect_list"
    QUANTILE = "quantile"
    CUSTOM = "custom"


#: Of no values, counts are 0 and lists are empty.
_NEVER_NULL = (
    AggregationKind.COUNT,
    AggregationKind.COUNT_DISTINCT,
    AggregationKind.COLLECT_LIST,
)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One function over one column.

    Attributes:
        column: None for the count of rows.
        by: the column by which `first` and `last` order records; None: the order of arrival.
        share: of a quantile, from 0 to 1.
        custom, more: the user's own aggregation, and its columns behind the first.
    """

    kind: AggregationKind
    column: str | None
    by: str | None = None
    share: float = 0.5
    custom: CustomAggregate | None = None
    more: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that it reads."""
        first = tuple(column for column in (self.column, self.by) if column is not None)
        return first + self.more

    def __str__(self) -> str:
        kind = self.kind.value if self.custom is None else type(self.custom).__name__
        return f"{kind}({', '.join(map(repr, self.sources))})"


def sum(column: str) -> Aggregation:
    """Sum of a numeric column: int64 of integers, float64 of floats, 38 digits of decimals (76 of
    decimal256).

    The job fails if a sum of integers or decimals overflows.
    """
    return Aggregation(AggregationKind.SUM, column)


def count(column: str | None = None) -> Aggregation:
    """Number of rows, or of the rows in which `column` is not null."""
    return Aggregation(AggregationKind.COUNT, column)


def min(column: str) -> Aggregation:
    """Smallest value of a column of numbers, text, bytes, dates, times, timestamps or durations."""
    return Aggregation(AggregationKind.MIN, column)


def max(column: str) -> Aggregation:
    """Largest value of a column of numbers, text, bytes, dates, times, timestamps or durations."""
    return Aggregation(AggregationKind.MAX, column)


def mean(column: str) -> Aggregation:
    """Mean of a column of integers or floats, as float64."""
    return Aggregation(AggregationKind.MEAN, column)


def first(column: str, *, by: str | None = None) -> Aggregation:
    """The value of the record that came first, or of the smallest `by` (a time, a number).

    Of equal ones the first that came. In windows `by` is the event time, unless stated.
    """
    return Aggregation(AggregationKind.FIRST, column, by)


def last(column: str, *, by: str | None = None) -> Aggregation:
    """The value of the record that came last, or of the largest `by`; see `first`."""
    return Aggregation(AggregationKind.LAST, column, by)


def count_distinct(column: str) -> Aggregation:
    """Number of different values, exactly. The state holds them, and each batch copies them."""
    return Aggregation(AggregationKind.COUNT_DISTINCT, column)


def collect_list(column: str) -> Aggregation:
    """All values in a list, in the order of arrival. The state holds them."""
    return Aggregation(AggregationKind.COLLECT_LIST, column)


def quantile(column: str, share: float) -> Aggregation:
    """The value below which `share` of the numbers lie, interpolated, exactly: as float64.

    For example `quantile("ms", 0.99)`; 0.5 is the median. The state holds all numbers.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UserError(f"quantile({column!r}, {share!r}): the share is from 0 to 1, as in 0.99")
    return Aggregation(AggregationKind.QUANTILE, column, share=float(share))


def custom(
    aggregate: CustomAggregate | type[CustomAggregate], column: str, *more: str
) -> Aggregation:
    """An aggregation of one's own over one or several columns, as in
    `aggregate(spread=hr.custom(Spread, "amount"))`.

    Raises: UserError when the class declares no state or result.
    """
    return Aggregation(AggregationKind.CUSTOM, column, custom=checked(aggregate), more=more)


def aggregate_schema(
    keys: Sequence[str], aggregations: Mapping[str, Aggregation], schema_in: pa.Schema
) -> pa.Schema:
    """Return the schema of an aggregate's output: the key columns, then one column per aggregation.

    Raises: UserError for an unknown column, a type without the aggregation, a type that cannot be a
    key, or a repeated name.
    """
    if not aggregations:
        raise UserError("aggregate: name at least one aggregation, such as n=count()")
    try:
        key_hashers(schema_in, keys)
    except (ValueError, TypeError) as error:
        raise UserError(f"aggregate: {error}") from error
    fields = [_decoded(schema_in.field(name)) for name in keys]
    for name, aggregation in aggregations.items():
        if name in keys:
            raise UserError(f"aggregate: {name!r} is a key column; give {aggregation} another name")
        type_ = result_type(aggregation, schema_in)
        fields.append(pa.field(name, type_, nullable=aggregation.kind not in _NEVER_NULL))
    return pa.schema(fields)


def result_type(aggregation: Aggregation, schema_in: pa.Schema) -> pa.DataType:
    """Return the type of an aggregation's result.

    Raises: UserError when the column does not exist or its type lacks the aggregation.
    """
    if aggregation.column is None:
        return pa.int64()
    for column in aggregation.sources:
        if schema_in.get_field_index(column) < 0:
            raise UserError(
                f"aggregate: {aggregation} needs column {column!r}; there are"
                f" {', '.join(schema_in.names)}"
            )
    if aggregation.custom is not None:
        return aggregation.custom.result
    _check_order(aggregation, schema_in)
    type_ = schema_in.field(aggregation.column).type
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    decimal = pa.types.is_decimal(type_)
    text = any(is_text(type_) for is_text in _TEXTS)
    temporal = pa.types.is_temporal(type_) and not pa.types.is_interval(type_)
    match aggregation.kind:
        case AggregationKind.COUNT:
            return pa.int64()
        case AggregationKind.COUNT_DISTINCT if not pa.types.is_nested(type_):
            return pa.int64()
        case AggregationKind.FIRST | AggregationKind.LAST:
            return plain_type(type_)
        case AggregationKind.COLLECT_LIST:
            return pa.list_(plain_type(type_))
        case AggregationKind.QUANTILE if number:
            return pa.float64()
        case AggregationKind.SUM if number:
            return pa.int64() if pa.types.is_integer(type_) else pa.float64()
        case AggregationKind.SUM if decimal:
            wide = pa.types.is_decimal256(type_)
            return pa.decimal256(76, type_.scale) if wide else pa.decimal128(38, type_.scale)
        case AggregationKind.MEAN if number:
            return pa.float64()
        case AggregationKind.MIN | AggregationKind.MAX if number or decimal or text or temporal:
            return type_
    raise UserError(
        f"aggregate: there is no {aggregation.kind.value} of {type_} (column"
        f" {aggregation.column!r}); cast it in a "
        "select, or use process with a state of your own"
    )


def _check_order(aggregation: Aggregation, schema_in: pa.Schema) -> None:
    if aggregation.by is None:
        return
    type_ = schema_in.field(aggregation.by).type
    if not is_word_type(type_):
        raise UserError(
            f"aggregate: {aggregation} orders records by {aggregation.by!r}, which is {type_};"
            " it takes numbers, dates and times"
        )


def _decoded(field: pa.Field) -> pa.Field:
    """Keys are emitted as plain values: a dictionary of all keys would grow with every batch."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
