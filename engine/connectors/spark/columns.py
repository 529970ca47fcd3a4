"""Arrow columns in Spark's types: a type that Spark lacks is widened if that loses nothing, and
refused otherwise.

    uint8, uint16, uint32        the next larger signed integer
    uint64                       decimal(20, 0)
    float16                      float
    timestamp                    microseconds, UTC if it has a zone; reading refuses finer values
    duration, date64, time32/64  day-time interval, date, time
    dictionary                   its values
    large, fixed-size and view   the plain type
    null, struct, list, map      the same, of such types
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ...contract.errors import UserError

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
_DECIMAL_DIGITS_MAX = 38
#: Moments in UTC, which older versions of PySpark 4 have by default, under another name.
_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType, what: str) -> pa.Schema:
    """Translate Spark's schema. Raises: UserError, with `what`, for a type that Arrow lacks."""
    try:
        return to_arrow_schema(schema, **_UTC)
    except PySparkException as error:
        raise UserError(f"{what}: {str(error).strip()}; leave this column out") from error


def spark_schema(schema: pa.Schema, what: str) -> StructType:
    """Translate a schema.

    Raises: UserError, with `what` and the column, for a type without a place in Spark.
    """
    fields = []
    for field in schema:
        try:
            # Without metadata: Spark would misread the notes of pandas or another writer as its
            # own.
            fields.append(pa.field(field.name, _spark_type(field.type), field.nullable))
        except pa.ArrowNotImplementedError:
            raise UserError(
                f"{what}: column {field.name!r} is of type {field.type}, which Spark does not have;"
                " read it with `headrace checkpoints show` instead"
            ) from None
    return from_arrow_schema(pa.schema(fields))


def spark_batch(batch: pa.RecordBatch, schema: StructType, what: str) -> pa.RecordBatch:
    """Bring the columns of `schema` into exactly the types that Spark expects.

    Raises: UserError for a value that does not fit.
    """
    target = to_arrow_schema(schema, **_UTC)
    columns = []
    for field in target:
        try:
            columns.append(_cast(batch.column(field.name), field.type))
        except pa.ArrowInvalid as error:
            raise UserError(f"{what}: column {field.name!r} cannot go to Spark: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(type_, safe=True)


def _spark_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that Spark's own conversion takes. Raises: ArrowNotImplementedError."""
    is_ = pa.types
    if type_ in _WIDER:
        return _WIDER[type_]
    if is_.is_dictionary(type_):
        return _spark_type(type_.value_type)
    if is_.is_timestamp(type_):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if is_.is_duration(type_):
        return pa.duration("us")
    if is_.is_time(type_):
        return pa.time64("ns")
    if is_.is_decimal(type_) and type_.precision <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(type_.precision, type_.scale)
    if is_.is_large_string(type_) or is_.is_string(type_):
        return pa.string()
    if is_.is_large_binary(type_) or is_.is_fixed_size_binary(type_) or is_.is_binary(type_):
        return pa.binary()
    if is_.is_nested(type_):
        return _spark_nested(type_)
    if (
        is_.is_signed_integer(type_)
        or is_.is_floating(type_)
        or type_ in (pa.bool_(), pa.date32(), pa.null())
    ):
        return type_
    raise pa.ArrowNotImplementedError(str(type_))


def _spark_nested(type_: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_list(type_) or is_.is_large_list(type_) or is_.is_fixed_size_list(type_):
        return pa.list_(_spark_field(type_.value_field))
    if is_.is_map(type_):
        return pa.map_(_spark_field(type_.key_field), _spark_field(type_.item_field))
    if is_.is_struct(type_):
        return pa.struct([_spark_field(field) for field in type_])
    raise pa.ArrowNotImplementedError(str(type_))


def _spark_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _spark_type(field.type), field.nullable)
