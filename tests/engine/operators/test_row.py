from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserCodeError
from headrace.engine.operators.row import FilterFunctionOperator, FlatMapOperator, MapOperator

BATCH = pa.record_batch({"x": np.arange(3000)})
OUT = pa.schema([("y", pa.int64()), pa.field("z", pa.string(), nullable=False)])


def joined(batches: Any) -> pa.Table:
    return pa.Table.from_batches(list(batches))


def test_map_emits_one_record_per_record_in_order() -> None:
    operator = MapOperator(lambda row: {"z": "a", "y": row["x"] * 2}, OUT, operator="double")
    table = joined(operator.process(BATCH, 0))
    assert table["y"].to_pylist() == [2 * x for x in range(3000)]
    assert table.schema == OUT


def test_flat_map_takes_lists_generators_and_nothing() -> None:
    def repeated(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _ in range(row["x"] % 3):
            yield {"y": row["x"], "z": ""}

    operator = FlatMapOperator(repeated, OUT, operator="repeat")
    found = joined(operator.process(BATCH, 0))["y"].to_pylist()
    assert found == [x for x in range(3000) for _ in range(x % 3)]
    nothing = FlatMapOperator(lambda row: None, OUT, operator="nothing")
    assert list(nothing.process(BATCH, 0)) == []


def test_filter_keeps_records_and_their_schema() -> None:
    operator = FilterFunctionOperator(lambda row: row["x"] % 2 == 0, operator="even")
    table = joined(operator.process(BATCH, 0))
    assert table["x"].to_pylist() == list(range(0, 3000, 2))
    assert table.schema == BATCH.schema


def broken(row: dict[str, Any]) -> Any:
    return {"y": 1 // (row["x"] - 2000), "z": "a"}


def test_an_exception_tells_operator_record_and_the_users_frames_only() -> None:
    with pytest.raises(UserCodeError) as caught:
        joined(MapOperator(broken, OUT, operator="divide").process(BATCH, 0))
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.operator == "divide"
    assert "ZeroDivisionError" in error.message
    assert "{'x': 2000}" in error.message
    assert "in broken" in error.user_traceback
    assert "row.py" not in error.user_traceback.replace("test_row.py", "")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (7, "returned int 7 where a dict"),
        (None, "returned NoneType"),
        ({"y": 1}, "no 'z'"),
        ({"y": 1, "z": "", "w": 1}, "'w', not among"),
        ({"y": "one", "z": ""}, "'one' in column 'y', declared as int64"),
        ({"y": 1.5, "z": ""}, "1.5 in column 'y'"),
        ({"y": 1, "z": None}, "None in column 'z', declared as not nullable"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused_with_the_record(
    returned: Any, message: str
) -> None:
    def function(row: dict[str, Any]) -> Any:
        return returned if row["x"] == 1500 else {"y": None, "z": ""}

    with pytest.raises(UserCodeError, match=message) as caught:
        joined(MapOperator(function, OUT, operator="odd").process(BATCH, 0))
    assert "{'x': 1500}" in str(caught.value)


def test_flat_map_refuses_a_lone_dict() -> None:
    def lone(row: dict[str, Any]) -> Any:
        return {"y": 1, "z": ""}

    with pytest.raises(UserCodeError, match="iterable of dicts"):
        joined(FlatMapOperator(lone, OUT, operator="one").process(BATCH, 0))


def test_filter_refuses_what_is_no_bool() -> None:
    def forgot(row: dict[str, Any]) -> Any:
        return None

    with pytest.raises(UserCodeError, match="NoneType None where True or False"):
        joined(FilterFunctionOperator(forgot, operator="forgot").process(BATCH, 0))


def mapped(batch: pa.RecordBatch, function: Any, schema: pa.Schema | None = None) -> pa.Table:
    operator = MapOperator(function, schema or batch.schema, operator="m")
    return joined(operator.process(batch, 0))


def test_columns_that_a_function_hands_on_are_the_very_ones_that_came() -> None:
    batch = pa.record_batch({"x": [1, 2], "s": ["a", None], "y": [0.5, None]})
    table = mapped(batch, lambda row: {**row, "x": row["x"] + 1})
    assert table.to_pydict() == {"x": [2, 3], "s": ["a", None], "y": [0.5, None]}
    came, went = batch.column("y").buffers()[1], table["y"].chunk(0).buffers()[1]
    assert came.address == went.address


def test_a_nested_value_that_is_changed_in_place_is_a_new_one() -> None:
    def grow(row: dict[str, Any]) -> dict[str, Any]:
        row["tags"].append(row["x"])
        return row

    batch = pa.record_batch({"x": [1, 2], "tags": [[], [5]]}, BATCH_OF_TAGS)
    assert mapped(batch, grow)["tags"].to_pylist() == [[1], [5, 2]]


BATCH_OF_TAGS = pa.schema([("x", pa.int64()), ("tags", pa.list_(pa.int64()))])


@pytest.mark.parametrize(
    ("given", "returned"), [(pa.array([1, 0]), [True, False]), (pa.array([0.0]), [False])]
)
def test_an_equal_value_of_another_type_is_refused_as_ever(given: pa.Array, returned: Any) -> None:
    left = iter(returned)
    with pytest.raises(UserCodeError, match="declared as"):
        mapped(pa.record_batch({"x": given}), lambda row: {"x": next(left)})


def test_a_negative_zero_in_the_place_of_zero_stays_negative() -> None:
    batch = pa.record_batch({"x": [0.0, 0.0]})
    assert str(mapped(batch, lambda row: {"x": -row["x"]})["x"].to_pylist()) == "[-0.0, -0.0]"


def test_values_handed_on_are_converted_to_the_declared_type_and_checked() -> None:
    batch = pa.record_batch({"x": [1, 300]})
    assert mapped(batch, dict, pa.schema([("x", pa.int16())]))["x"].type == pa.int16()
    with pytest.raises(UserCodeError, match="declared as int8"):
        mapped(batch, dict, pa.schema([("x", pa.int8())]))
    nulls = pa.record_batch({"x": pa.array([None, 1])})
    with pytest.raises(UserCodeError, match="not nullable"):
        mapped(nulls, dict, pa.schema([pa.field("x", pa.int64(), nullable=False)]))


def test_values_handed_on_in_another_order_are_taken_in_that_order() -> None:
    left = iter([3, 2, 1])
    assert mapped(pa.record_batch({"x": [1, 2, 3]}), lambda row: {"x": next(left)})[
        "x"
    ].to_pylist() == [3, 2, 1]
