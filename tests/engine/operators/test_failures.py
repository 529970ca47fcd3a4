"""Records whose call fails: every other record goes on in order, and each failure is a letter."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserCodeError
from headrace.engine.operators.batch import MapBatchesOperator
from headrace.engine.operators.failures import OnError, letter_schema
from headrace.engine.operators.row import FilterFunctionOperator, FlatMapOperator, MapOperator

SCHEMA = pa.schema([("x", pa.int64())])
ROWS = 2500
BATCH = pa.record_batch({"x": list(range(ROWS))}, schema=SCHEMA)
Row = dict[str, Any]


def is_bad(x: int) -> bool:
    return x % 500 == 3


def mapped(row: Row) -> Row:
    return {"x": 1 // 0} if is_bad(row["x"]) else row


def misfit(row: Row) -> Row:
    return {"x": "text"} if is_bad(row["x"]) else row


def left(row: Row) -> Row:
    return row if not is_bad(row["x"]) else sys.exit(3)


def flat(row: Row) -> Iterator[Row]:
    yield row
    if is_bad(row["x"]):
        raise ValueError("after the first")


def kept(row: Row) -> Any:
    return "yes" if is_bad(row["x"]) else True


def batched(batch: pa.RecordBatch) -> pa.RecordBatch:
    if any(map(is_bad, batch["x"].to_pylist())):
        raise RuntimeError("one of them")
    return batch


def generated(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batched(batch).slice(0, 0)


def mistyped(batch: pa.RecordBatch) -> dict[str, Any]:
    found = batch["x"].to_pylist()
    return {"x": [str(x) if is_bad(x) else x for x in found]}


OPERATORS: dict[str, tuple[Callable[[OnError], Any], str]] = {
    "map": (lambda how: MapOperator(mapped, SCHEMA, operator="o", on_error=how), "ZeroDiv"),
    "misfit": (lambda how: MapOperator(misfit, SCHEMA, operator="o", on_error=how), "UserCode"),
    "exit": (lambda how: MapOperator(left, SCHEMA, operator="o", on_error=how), "SystemExit"),
    "flat_map": (lambda how: FlatMapOperator(flat, SCHEMA, operator="o", on_error=how), "Value"),
    "filter": (lambda how: FilterFunctionOperator(kept, operator="o", on_error=how), "UserCode"),
    "batches": (lambda how: batches_by(batched, how), "RuntimeError"),
    "generator": (lambda how: batches_by(generated, how), "RuntimeError"),
    "mistyped": (lambda how: batches_by(mistyped, how), "UserCode"),
}


def batches_by(function: Callable[[pa.RecordBatch], Any], how: OnError) -> MapBatchesOperator:
    operator = MapBatchesOperator(function, SCHEMA, 700, operator="o", on_error=how)
    operator.open(None)  # type: ignore[arg-type]  # a function needs no context
    return operator


@pytest.mark.parametrize("how", ["skip", "route"])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_good_records_go_on_and_the_failed_ones_are_letters(name: str, how: OnError) -> None:
    make, error = OPERATORS[name]
    operator = make(how)
    emitted = [x for batch in operator.process(BATCH, 0) for x in batch["x"].to_pylist()]
    assert emitted == [x for x in range(ROWS) if not is_bad(x)]
    (letters,) = operator.take_errors()
    assert letters.schema == letter_schema(SCHEMA)
    rows = letters.to_pylist()
    assert [row["record"]["x"] for row in rows] == [x for x in range(ROWS) if is_bad(x)]
    assert {row["operator"] for row in rows} == {"o"}
    assert all(row["error"].startswith(error) for row in rows)
    assert operator.take_errors() == ()


@pytest.mark.parametrize("name", OPERATORS)
def test_without_on_error_the_first_failure_is_the_jobs(name: str) -> None:
    operator = OPERATORS[name][0]("fail")
    with pytest.raises(UserCodeError, match="operator 'o'"):
        list(operator.process(BATCH, 0))
    assert operator.take_errors() == ()


def test_a_letter_holds_any_record_as_it_came() -> None:
    nested = pa.struct([("a", pa.list_(pa.timestamp("us", "UTC")))])
    id_ = pa.field("id", pa.int64(), nullable=False)
    schema = pa.schema([id_, ("n", nested), ("b", pa.binary())])
    rows = [{"id": 1, "n": {"a": [0]}, "b": b"\xff"}, {"id": 2, "n": None, "b": None}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)

    def fails(row: Row) -> Row:
        raise KeyError("b")

    operator = MapOperator(fails, schema, operator="o", on_error="route")
    assert list(operator.process(batch, 0)) == []
    (letters,) = operator.take_errors()
    letters.validate(full=True)
    assert letters["record"].to_pylist() == batch.to_pylist()
    assert letters["message"].to_pylist() == ["'b'", "'b'"]


def test_an_exception_made_once_does_not_keep_all_failed_calls() -> None:
    once = ValueError("made once")

    def fails(row: Row) -> Row:
        raise once

    operator = MapOperator(fails, SCHEMA, operator="o", on_error="skip")
    list(operator.process(BATCH, 0))
    assert len(operator.take_errors()[0]) == ROWS
    assert len(traceback.extract_tb(once.__traceback__)) <= 2
