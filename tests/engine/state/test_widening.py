"""Structs that gained fields: filled from the default, or null; nothing else is touched."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.state.widening import widened_table

OLD = pa.struct([("a", pa.int64())])
NEW = pa.struct([("b", pa.string()), ("a", pa.int64())])
DEEP_OLD, DEEP_NEW = pa.struct([("s", OLD)]), pa.struct([("s", NEW), ("c", pa.bool_())])


def widened(values: list[Any], old: pa.DataType, new: pa.DataType, default: Any = None) -> Any:
    table = pa.table({"k": pa.array(range(len(values))), "v": pa.array(values, old)})
    schema = pa.schema([("k", pa.int64()), ("v", new)])
    # A slice, as a rescale makes them: offsets into longer buffers must not matter.
    whole = widened_table(table, schema, "v", default)
    part = widened_table(table.slice(1), schema, "v", default)
    whole.validate(full=True)
    assert part["v"].to_pylist() == whole["v"].to_pylist()[1:]
    assert whole.schema == schema
    return whole["v"].to_pylist()


@pytest.mark.parametrize(
    ("values", "old", "new", "default", "expected"),
    [
        (
            [{"a": 1}, None, {"a": None}],
            OLD,
            NEW,
            None,
            [{"b": None, "a": 1}, None, {"b": None, "a": None}],
        ),
        ([{"a": 1}, None], OLD, NEW, {"a": 0, "b": "x"}, [{"b": "x", "a": 1}, None]),
        (
            [{"s": {"a": 1}}, {"s": None}],
            DEEP_OLD,
            DEEP_NEW,
            {"s": {"b": "x"}, "c": True},
            [{"s": {"b": "x", "a": 1}, "c": True}, {"s": None, "c": True}],
        ),
        (
            [[{"a": 1}, {"a": 2}], None, [], [{"a": 3}]],
            pa.list_(OLD),
            pa.list_(NEW),
            None,
            [[{"b": None, "a": 1}, {"b": None, "a": 2}], None, [], [{"b": None, "a": 3}]],
        ),
        (
            [[("x", {"a": 1})], None, [("y", {"a": 2})]],
            pa.map_(pa.string(), OLD),
            pa.map_(pa.string(), NEW),
            None,
            [[("x", {"b": None, "a": 1})], None, [("y", {"b": None, "a": 2})]],
        ),
    ],
    ids=["null", "default", "nested", "list", "map"],
)
def test_added_fields_are_filled(
    values: list[Any], old: pa.DataType, new: pa.DataType, default: Any, expected: list[Any]
) -> None:
    assert widened(values, old, new, default) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (NEW, OLD),
        (OLD, pa.struct([("a", pa.int32())])),
        (pa.int64(), pa.float64()),
        (OLD, pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])),
        (pa.map_(pa.int32(), OLD), pa.map_(pa.string(), NEW)),
    ],
    ids=["a field less", "another type", "no struct", "nothing to fill with", "another key"],
)
def test_any_other_change_is_left_for_others_to_refuse(old: pa.DataType, new: pa.DataType) -> None:
    table = pa.schema([("v", old)]).empty_table()
    assert widened_table(table, pa.schema([("v", new)]), "v").schema == table.schema
