"""Rows of Kafka's records: columns, and what keys and values are decoded to."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.record_batch import HEADERS, TIMESTAMP, Records
from headrace.engine.connectors.kafka.values import COLUMNS, BadRecord, Rows
from headrace.engine.contract.errors import UserError

PLACE = Partition("t", 3)
ORDER = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.timestamp("us"))])


def records(values: list[bytes | None], keys: list[bytes | None] | None = None) -> Records:
    count = len(values)
    return Records(
        offsets=pa.array(range(100, 100 + count), pa.int64()),
        timestamps=pa.array([5] * count, pa.int64()).view(TIMESTAMP),
        keys=pa.array(keys or [None] * count, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=pa.array([[{"key": "h", "value": b"x"}]] * count, HEADERS),
    )


def test_all_columns_come_unless_some_are_named() -> None:
    batch = Rows().batch(PLACE, records([b"v"]))
    assert batch.schema == pa.schema(list(COLUMNS.items())) == Rows().schema
    (row,) = batch.to_pylist()
    assert (row["topic"], row["partition"], row["offset"]) == ("t", 3, 100)
    assert (row["key"], row["value"], row["headers"]) == (None, b"v", [{"key": "h", "value": b"x"}])
    some = Rows(("offset", "value"))
    assert some.batch(PLACE, records([b"v"])).schema.names == ["offset", "value"]
    assert not some.with_headers


def test_keys_and_values_are_text_where_asked() -> None:
    rows = Rows(("key", "value"), key="text", value="text")
    batch = rows.batch(PLACE, records(["größer".encode(), None], [b"k", None]))
    assert batch.to_pylist() == [{"key": "k", "value": "größer"}, {"key": None, "value": None}]
    with pytest.raises(BadRecord, match=r"record 101 of t-3: its value is not UTF-8: b'\\xff'"):
        rows.batch(PLACE, records([b"fine", b"\xff"]))


def test_json_becomes_columns() -> None:
    rows = Rows(("offset", "value"), value=ORDER)
    values = [
        b'{"n": 1, "tags": ["a"], "more": 0}',
        b'{\n "n": 2\n}',
        None,
        b'{"at": "2026-01-01"}',
    ]
    batch = rows.batch(PLACE, records(values))
    assert batch.schema == pa.schema([("offset", pa.int64()), *ORDER])
    assert batch.column("n").to_pylist() == [1, 2, None, None]
    assert batch.column("tags").to_pylist() == [["a"], None, None, None]
    assert batch.column("at").cast(pa.int64()).to_pylist() == [None] * 3 + [1767225600000000]


@pytest.mark.parametrize("bad", [b"", b"{", b'{"n": "x"}', b"1", b'{"n": 1} {"n": 2}', b"[]"])
def test_a_value_that_is_no_object_of_the_schema_is_named(bad: bytes) -> None:
    rows = Rows(("value",), value=ORDER)
    with pytest.raises(BadRecord, match="record 101 of t-3: its value is no JSON object"):
        rows.batch(PLACE, records([b'{"n": 1}', bad, b'{"n": 3}']))


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"columns": ("values",)}, "no column 'values': did you mean 'value'"),
        ({"key": "json"}, "key='json': give 'binary' or 'text'$"),
        ({"value": "json"}, "give 'binary' or 'text', or a schema"),
        ({"value": pa.schema([("offset", pa.int64())])}, "value= has a column 'offset'"),
    ],
)
def test_forms_that_make_no_sense_are_refused(form: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Rows(**form)
