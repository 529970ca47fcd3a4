"""Aggregations of a pipeline, as values, and the types of their results.

Aggregations skip nulls, as in SQL: over nulls alone, sum, minimum, maximum and mean are null, and
the count is 0. Sums of integers are int64, of decimals decimals of the most digits, both checked;
sums of floats are float64. Minimum and maximum also skip NaN where there is a number; text is
compared by its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from headrace.channels.hashing import key_hashers

from ..contract.errors import UserError

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


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One function over one column; `column` is None for the count of rows."""

    kind: AggregationKind
    column: str | None

    def __str__(self) -> str:
        return f"{self.kind.value}({'' if self.column is None else repr(self.column)})"


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
        counts = aggregation.kind is AggregationKind.COUNT
        fields.append(pa.field(name, type_, nullable=not counts))
    return pa.schema(fields)


def result_type(aggregation: Aggregation, schema_in: pa.Schema) -> pa.DataType:
    """Return the type of an aggregation's result.

    Raises: UserError when the column does not exist or its type lacks the aggregation.
    """
    if aggregation.column is None:
        return pa.int64()
    if schema_in.get_field_index(aggregation.column) < 0:
        raise UserError(
            f"aggregate: {aggregation} needs column {aggregation.column!r}; there are"
            f" {', '.join(schema_in.names)}"
        )
    type_ = schema_in.field(aggregation.column).type
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    decimal = pa.types.is_decimal(type_)
    text = any(is_text(type_) for is_text in _TEXTS)
    temporal = pa.types.is_temporal(type_) and not pa.types.is_interval(type_)
    match aggregation.kind:
        case AggregationKind.COUNT:
            return pa.int64()
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


def _decoded(field: pa.Field) -> pa.Field:
    """Keys are emitted as plain values: a dictionary of all keys would grow with every batch."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
