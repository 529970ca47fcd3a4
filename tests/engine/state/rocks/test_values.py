from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa

from headrace.engine.state.rocks.values import RowValues, value_codec

COLUMNS = {
    "text": pa.array(["a", None, ""]),
    "number": pa.array([1, -(2**63), None], pa.int64()),
    "large": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "share": pa.array([-0.0, float("inf"), None]),
    "at": pa.array([datetime(2020, 1, 1), None, datetime(1960, 1, 1)], pa.timestamp("us")),
    "day": pa.array([date(2020, 1, 1), None, date(1960, 1, 1)]),
    "flag": pa.array([True, False, None]),
    "price": pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal128(10, 2)),
    "word": pa.array(["x", "y", None]).dictionary_encode(),
    "tags": pa.array([["x", None], [], None], pa.list_(pa.string())),
    "found": pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "part": pa.array([{"n": 1}, None, {"n": None}], pa.struct([("n", pa.int64())])),
    "nothing": pa.nulls(3),
}


def test_rows_of_any_columns_come_back_as_they_were() -> None:
    codec = value_codec([pa.field(name, array.type) for name, array in COLUMNS.items()])
    assert isinstance(codec, RowValues)
    stored = codec.encode(list(COLUMNS.values()))
    assert len(stored) == 3
    for array, found in zip(COLUMNS.values(), codec.decode(stored), strict=True):
        assert found.type == array.type
        assert found.to_pylist() == array.to_pylist()
    assert str(codec.decode(stored)[3][0]) == "-0.0"


def test_no_rows_are_columns_without_any() -> None:
    codec = value_codec([pa.field(name, array.type) for name, array in COLUMNS.items()])
    assert codec.encode([array.slice(0, 0) for array in COLUMNS.values()]) == []
    assert [len(found) for found in codec.decode([])] == [0] * len(COLUMNS)


def test_the_bytes_do_not_change() -> None:
    codec = value_codec([pa.field("a", pa.string()), pa.field("b", pa.int64())])
    assert codec.encode([pa.array(["x", None]), pa.array([-1, 5])]) == [
        b"\x92\xa1x\xff",
        b"\x92\xc0\x05",
    ]
