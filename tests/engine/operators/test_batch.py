from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # ships no types
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.engine.api.expressions import projected_schema
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import OperatorContext
from headrace.engine.operators.batch import (
    FilterOperator,
    MapBatchesOperator,
    SelectOperator,
    select_schema,
)
from headrace.engine.operators.batch_formats import BatchFormat

CONTEXT = OperatorContext("job", "op", 0, 1, 8, 0)
BATCH = pa.record_batch({"x": [1, None, 3, 4], "s": ["a", "b", "c", "d"]})
OUT = pa.schema([("y", pa.int64())])


def mapped(
    function: Any, batch_size: int | None = None, batch_format: BatchFormat = "arrow"
) -> list[Any]:
    operator = MapBatchesOperator(function, OUT, batch_size, batch_format, operator="op")
    operator.open(CONTEXT)
    found: list[Any] = [batch["y"].to_pylist() for batch in operator.process(BATCH, 0)]
    return found


def test_a_filter_drops_false_and_null() -> None:
    (out,) = FilterOperator(pc.field("x") > 1).process(BATCH, 0)
    assert out.to_pylist() == [{"x": 3, "s": "c"}, {"x": 4, "s": "d"}]
    assert out.schema == BATCH.schema


def test_a_filter_keeps_the_order_of_a_large_batch() -> None:
    batch = pa.record_batch({"x": np.arange(200_000)})
    outs = list(FilterOperator(pc.field("x") >= 10).process(batch, 0))
    assert pa.Table.from_batches(outs)["x"].to_numpy().tolist() == list(range(10, 200_000))


def test_select_computes_renames_and_reorders() -> None:
    expressions = {
        "t": pc.field("s"),
        "y": pc.field("x") * 2,
        "one": pc.scalar(1),
        "x": pc.field("x"),
    }
    schema = select_schema(expressions, BATCH.schema)
    (out,) = SelectOperator(expressions, schema).process(BATCH, 0)
    assert out.schema == schema
    assert out.to_pydict() == {
        "t": ["a", "b", "c", "d"],
        "y": [2, None, 6, 8],
        "one": [1, 1, 1, 1],
        "x": [1, None, 3, 4],
    }


def test_select_keeps_the_order_of_a_large_batch() -> None:
    batch = pa.record_batch({"x": np.arange(200_000)})
    expressions = {"y": pc.field("x") + 1}
    (out,) = SelectOperator(expressions, select_schema(expressions, batch.schema)).process(batch, 0)
    np.testing.assert_array_equal(out["y"].to_numpy(), np.arange(1, 200_001))


def test_select_refuses_an_unknown_column() -> None:
    with pytest.raises(UserError, match="'y' cannot be computed"):
        select_schema({"y": pc.field("nope") + 1}, BATCH.schema)
    with pytest.raises(UserError, match="at least one column"):
        select_schema({}, BATCH.schema)


def test_a_failing_expression_names_the_operator() -> None:
    expression = pc.divide(pc.field("x"), pc.scalar(0)) > 1
    with pytest.raises(UserCodeError, match=r"'halve'.*divide by zero"):
        list(FilterOperator(expression, operator="halve").process(BATCH, 0))


def test_a_function_may_return_batch_table_columns_iterator_or_nothing() -> None:
    batch = pa.record_batch({"y": [1, 2]})

    def both(_: pa.RecordBatch) -> Iterator[Any]:
        yield batch
        yield {"y": np.array([3])}

    assert mapped(lambda _: batch) == [[1, 2]]
    assert mapped(lambda _: pa.Table.from_batches([batch, batch])) == [[1, 2], [1, 2]]
    assert mapped(lambda _: {"y": [1, None]}) == [[1, None]]
    assert mapped(both) == [[1, 2], [3]]
    assert mapped(lambda _: iter(())) == []
    assert mapped(lambda _: pd.DataFrame({"y": [1.0, None]})) == [[1, None]]


def test_a_function_that_returns_none_is_told_that_records_would_be_lost() -> None:
    def forgets(_: pa.RecordBatch) -> None:
        return None

    def yields(_: pa.RecordBatch) -> Iterator[Any]:
        yield {"y": [1]}
        yield None

    for function in (forgets, yields):
        with pytest.raises(UserCodeError, match="returned None for a batch of 4 records"):
            mapped(function)


def test_a_function_gets_pandas_or_numpy_if_it_asks_for_them() -> None:
    def frame(given: pd.DataFrame) -> pd.DataFrame:
        assert isinstance(given, pd.DataFrame)
        return pd.DataFrame({"y": list(given["x"] * 2)}, index=[9, 8, 7, 6])

    def arrays(given: dict[str, Any]) -> dict[str, Any]:
        assert [type(array) for array in given.values()] == [np.ndarray, np.ndarray]
        return {"y": np.nan_to_num(given["x"]).astype(int)}

    assert mapped(frame, batch_format="pandas") == [[2, None, 6, 8]]
    assert mapped(arrays, batch_format="numpy") == [[1, 0, 3, 4]]


def test_a_frame_is_held_to_the_declared_schema() -> None:
    with pytest.raises(UserCodeError, match="adds 'z'"):
        mapped(lambda _: pd.DataFrame({"y": [1], "z": [1]}))
    with pytest.raises(UserCodeError, match="'y' of the returned columns does not fit"):
        mapped(lambda _: pd.DataFrame({"y": [1.5]}))


class Model:
    """Counts instances and ends."""

    made = 0
    closed = 0

    def __init__(self) -> None:
        type(self).made += 1

    def __call__(self, batch: pa.RecordBatch) -> dict[str, list[int]]:
        return {"y": [1]}

    def close(self) -> None:
        type(self).closed += 1
        raise RuntimeError("an end that fails is printed")


def test_an_instance_is_closed_and_a_function_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    Model.made = Model.closed = 0
    for given in (Model, Model()):
        operator = MapBatchesOperator(given, OUT)
        operator.open(CONTEXT)
        operator.close()
        operator.close()
    assert (Model.made, Model.closed) == (2, 1)
    assert "an end that fails is printed" in capsys.readouterr().err


def test_views_and_runs_that_a_function_returns_become_plain() -> None:
    schema = pa.schema([("s", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    views = pa.array(["a", None, "b"], pa.string_view())
    runs = pc.run_end_encode(pa.array([7, 7, 8]))
    given = pa.record_batch({"s": views, "n": runs})
    for returned in (given, pa.Table.from_batches([given]), {"s": views, "n": runs}):
        operator = MapBatchesOperator(partial(same, returned), schema, operator="op")
        operator.open(CONTEXT)
        (out,) = operator.process(BATCH, 0)
        assert out.schema == schema
        assert out.to_pydict() == {"s": ["a", None, "b"], "n": [7, 7, 8]}


def same(returned: object, _: pa.RecordBatch) -> object:
    return returned


def test_runs_of_nulls_in_a_column_declared_without_are_refused() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    runs = pa.record_batch({"n": pc.run_end_encode(pa.array([7, None]))})
    operator = MapBatchesOperator(lambda _: runs, schema, operator="op")
    operator.open(CONTEXT)
    with pytest.raises(UserCodeError, match="column 'n' of the returned batch has nulls"):
        list(operator.process(BATCH, 0))


def test_a_computed_view_becomes_plain() -> None:
    expressions = {"t": pc.field("s").cast(pa.string_view())}
    out = projected_schema(expressions, BATCH.schema)
    (batch,) = SelectOperator(expressions, out).process(BATCH, 0)
    assert batch.schema.field("t").type == pa.string()
    batch.validate(full=True)


def test_batches_have_at_most_the_size_asked_for() -> None:
    assert mapped(lambda b: {"y": [b.num_rows]}, batch_size=3) == [[3], [1]]


def test_a_class_is_made_once_and_called_for_each_batch() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, batch: pa.RecordBatch) -> dict[str, list[int]]:
            self.calls += 1
            return {"y": [self.calls]}

    assert mapped(Counter, batch_size=2) == [[1], [2]]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (pa.record_batch({"z": [1]}), "lacks 'y' and adds 'z'"),
        (
            pa.record_batch({"y": [1.0]}),
            "column 'y' of the returned batch is double, declared is int64",
        ),
        ({"y": [1.5]}, "'y' of the returned columns does not fit"),
        ({"y": pa.array([1], pa.int32())}, "is int32, declared is int64"),
        ({"y": [1], "z": [1]}, "adds 'z'"),
        ([1], "returned list"),
    ],
)
def test_other_names_or_types_are_refused_and_never_cast(returned: Any, message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        mapped(lambda _: returned)


def test_columns_of_different_lengths_and_undeclared_nulls_are_refused() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    for columns, message in (
        ({"a": [1], "b": [1, 2]}, "differ in length"),
        ({"a": [None], "b": [1]}, "not nullable"),
    ):
        given: Any = columns

        def function(_: pa.RecordBatch, given: Any = given) -> Any:
            return given

        operator = MapBatchesOperator(function, schema)
        operator.open(CONTEXT)
        with pytest.raises(UserCodeError, match=message):
            list(operator.process(BATCH, 0))


def test_what_a_function_or_constructor_raises_is_the_users() -> None:
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("no model")

    def late(_: pa.RecordBatch) -> Iterator[Any]:
        yield {"y": [1]}
        raise RuntimeError("late")

    with pytest.raises(UserCodeError, match="RuntimeError: no model"):
        mapped(Broken)
    with pytest.raises(UserCodeError, match="RuntimeError: late"):
        mapped(late)
