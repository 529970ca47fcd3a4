"""Fill in fields that were added to a struct since the checkpoint.

A struct may have gained fields anywhere in the type, also in the elements of a list and the values
of a map. Any other difference stays, for `tables.check_state` to refuse with both types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def widened_table(table: pa.Table, schema: pa.Schema, state: str, default: Any = None) -> pa.Table:
    """Give columns the types of `schema` where only fields are added.

    `default`: for column `state`: a dict, or None for nulls.
    """
    for index, field in enumerate(table.schema):
        at = schema.get_field_index(field.name)
        wanted = field.type if at < 0 else schema.field(at).type
        if wanted == field.type or not _only_adds(field.type, wanted, _fills(default)):
            continue
        fills = _fills(default) if field.name == state else {}
        column = table.column(index).combine_chunks()
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        arrays = [_widened(chunk, wanted, fills) for chunk in chunks]
        table = table.set_column(index, field.name, pa.chunked_array(arrays, type=wanted))
    return table


def _fills(default: Any) -> Mapping[str, Any]:
    return default if isinstance(default, Mapping) else {}


def _only_adds(old: pa.DataType, new: pa.DataType, fills: Mapping[str, Any]) -> bool:
    if old == new:
        return True
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        names = {field.name for field in new}
        return all(field.name in names for field in old) and all(
            _only_adds(old.field(field.name).type, field.type, _fills(fills.get(field.name)))
            if old.get_field_index(field.name) >= 0
            else field.nullable or fills.get(field.name) is not None
            for field in new
        )
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _only_adds(old.value_type, new.value_type, {})
    if pa.types.is_map(old) and pa.types.is_map(new):
        return bool(old.key_type == new.key_type) and _only_adds(old.item_type, new.item_type, {})
    return False


def _widened(column: pa.Array, new: pa.DataType, fills: Mapping[str, Any]) -> pa.Array:
    old = column.type
    if old == new:
        return column
    if pa.types.is_struct(new):
        given = dict(zip((field.name for field in old), column.flatten(), strict=True))
        children = [
            _widened(given[field.name], field.type, _fills(fills.get(field.name)))
            if field.name in given
            else pa.repeat(pa.scalar(fills.get(field.name), field.type), len(column))
            for field in new
        ]
        return pa.StructArray.from_arrays(children, fields=list(new), mask=column.is_null())
    if pa.types.is_map(new):
        items = _widened(column.items, new.item_type, {})
        return pa.MapArray.from_arrays(
            _offsets(column), column.keys, items, type=new, mask=column.is_null()
        )
    values = _widened(column.values, new.value_type, {})
    return pa.ListArray.from_arrays(_offsets(column), values, type=new, mask=column.is_null())


def _offsets(column: pa.Array) -> pa.Array:
    """Copy offsets: Arrow takes a mask with unsliced offsets only."""
    return pa.array(column.offsets.to_numpy(), pa.int32())
