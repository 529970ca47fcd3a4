from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("price", pa.int64())])
ROWS = [{"id": 1, "at": None, "price": 10}, {"id": 2, "at": None, "price": 20}]


def orders() -> Stream:
    stream = batches([pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)], name="orders")
    return replace(stream, event_time="at")


def rows_of(stream: Stream) -> list[dict[str, object]]:
    job = hr.Job("orders", stream.write.collect(name="out"), parallelism=1)
    found: list[dict[str, object]] = job.run(runner="threads").collected["out"].to_pylist()
    return found


def test_with_columns_adds_and_replaces_and_sees_the_columns_as_they_come() -> None:
    price, double = pc.field("price"), pc.field("price") * 2
    stream = orders().with_columns(price=price + 1, double=double)
    assert stream.schema.names == ["id", "at", "price", "double"]
    assert stream.event_time == "at"
    assert [(row["price"], row["double"]) for row in rows_of(stream)] == [(11, 20), (21, 40)]


def test_drop_leaves_columns_out_and_event_time_with_its_column() -> None:
    stream = orders().drop("price", "at")
    assert (stream.schema.names, stream.event_time) == (["id"], None)
    assert rows_of(stream) == [{"id": 1}, {"id": 2}]


def test_rename_keeps_order_types_and_event_time() -> None:
    stream = orders().rename({"at": "time", "id": "price", "price": "id"})
    assert stream.schema.names == ["price", "time", "id"]
    assert stream.event_time == "time"
    assert rows_of(stream)[0] == {"price": 1, "time": None, "id": 10}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.with_columns(), "with_columns needs at least one column"),
        (lambda s: s.with_columns(x=pc.field("pric")), "with_columns: there is no column 'pric'"),
        (lambda s: s.with_columns(x=3), "with_columns: x=3 is not an Arrow expression"),
        (lambda s: s.drop("x"), "drop: there is no column 'x'"),
        (lambda s: s.drop("id", "at", "price"), "no column would be left"),
        (lambda s: s.rename({"x": "y"}), "rename: there is no column 'x'"),
        (lambda s: s.rename({"id": "at"}), "several columns would be called 'at'"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(call: Callable[[Stream], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(orders())
