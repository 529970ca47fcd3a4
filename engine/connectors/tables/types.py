"""Column types of tables: what a stream's columns become, and whether they fit a table.

Tables know fewer types than Arrow. A column takes the narrowest type of tables that holds all its
values; a column for which there is none is refused before the job runs, and so is one that an
existing table has with another type.
"""

from __future__ import annotations

import pyarrow as pa

from ...contract.errors import UserError
from ...contract.suggestion import did_you_mean

_SIGNED = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64()}
_PLAIN = {
    "large_string": pa.string(),
    "large_binary": pa.binary(),
    "date64[ms]": pa.date32(),
    "halffloat": pa.float32(),
}


def table_schema(schema: pa.Schema, *, smallest_integer: pa.DataType) -> pa.Schema:
    """Return the columns in types of tables.

    Args:
        smallest_integer: that the tables know; narrower ones become it.

    Raises: UserError, for a column without a type there.
    """
    columns = []
    for column in schema:
        type_ = _of_table(column.type, smallest_integer)
        if type_ is None:
            raise UserError(
                f"column {column.name!r} is {column.type}, which tables do not know: cast it,"
                f" for example to {_proposal(column.type)}"
            )
        columns.append(pa.field(column.name, type_, column.nullable))
    return pa.schema(columns)


def fitted(schema: pa.Schema, table: pa.Schema, where: str) -> pa.Schema:
    """Return the columns of `schema` as the table has them.

    Args:
        schema: in types of tables.
        where: names the table, for errors.

    Raises: UserError, with the first column that does not fit.
    """
    columns = []
    for column in schema:
        if table.get_field_index(column.name) < 0:
            raise UserError(
                f"{where} has no column {column.name!r}; {did_you_mean(column.name, table.names)}"
            )
        there = table.field(column.name)
        if not _fits(column.type, there.type):
            raise UserError(
                f"{where} has column {column.name!r} as {there.type}, and the stream's is"
                f" {column.type}: cast it, or write to another table"
            )
        columns.append(pa.field(column.name, _of_file(column.type, there.type), there.nullable))
    for there in table:
        if schema.get_field_index(there.name) < 0 and not there.nullable:
            raise UserError(
                f"{where} needs column {there.name!r} in every record, and the stream has none"
            )
    return pa.schema(columns)


def _of_table(type_: pa.DataType, smallest: pa.DataType) -> pa.DataType | None:
    is_of = pa.types
    if str(type_) in _PLAIN:
        return _PLAIN[str(type_)]
    if is_of.is_integer(type_):
        signed = _SIGNED.get(str(type_), type_)
        if is_of.is_uint64(signed):
            return None
        return smallest if signed.bit_width < smallest.bit_width else signed
    if is_of.is_timestamp(type_) and type_.unit != "ns":
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if is_of.is_fixed_size_binary(type_):
        return pa.binary()
    if is_of.is_nested(type_):
        return _nested(type_, smallest)
    known = (
        is_of.is_string(type_)
        or is_of.is_binary(type_)
        or is_of.is_boolean(type_)
        or is_of.is_float32(type_)
        or is_of.is_float64(type_)
        or is_of.is_date32(type_)
        or is_of.is_decimal128(type_)
    )
    return type_ if known else None


def _nested(type_: pa.DataType, smallest: pa.DataType) -> pa.DataType | None:
    is_of = pa.types
    if is_of.is_list(type_) or is_of.is_large_list(type_) or is_of.is_fixed_size_list(type_):
        values = _of_table(type_.value_type, smallest)
        return None if values is None else pa.list_(values)
    if is_of.is_struct(type_):
        inner = {field.name: _of_table(field.type, smallest) for field in type_}
        return None if None in inner.values() else pa.struct(list(inner.items()))
    if is_of.is_map(type_):
        key, item = _of_table(type_.key_type, smallest), _of_table(type_.item_type, smallest)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _fits(type_: pa.DataType, there: pa.DataType) -> bool:
    """Whether every value of a stream's column has a place in a table's."""
    is_of = pa.types
    if is_of.is_integer(type_) and is_of.is_integer(there):
        return bool(type_.bit_width <= there.bit_width)
    if is_of.is_floating(type_) and is_of.is_floating(there):
        return bool(type_.bit_width <= there.bit_width)
    if is_of.is_nested(type_):
        return _canonical(type_) == _canonical(there)
    return bool(_canonical(type_) == _canonical(there))


def _of_file(type_: pa.DataType, there: pa.DataType) -> pa.DataType:
    """Type in the files: a wider number is the table's; names inside lists stay the stream's."""
    return there if pa.types.is_primitive(type_) else type_


def _canonical(type_: pa.DataType) -> pa.DataType | None:
    """Type without names of list items and without what may be null."""
    return _of_table(type_, pa.int8())


def _proposal(type_: pa.DataType) -> str:
    is_of = pa.types
    if is_of.is_timestamp(type_):
        return "timestamp[us]"
    if is_of.is_uint64(type_):
        return "int64 or decimal128(20, 0)"
    return "string"
