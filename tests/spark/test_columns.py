"""Arrow types that Spark lacks: widened without loss, or refused with the column's name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.spark.columns import spark_batch, spark_schema
from headrace.engine.contract.errors import UserError

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)

WIDENED: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.uint8(), 255, "smallint", 255),
    (pa.uint16(), 65535, "int", 65535),
    (pa.uint32(), 2**32 - 1, "bigint", 2**32 - 1),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.binary(), b"\x00\xff", "binary", b"\x00\xff"),
    (pa.binary(2), b"\x00\xff", "binary", b"\x00\xff"),
    (pa.large_string(), "a", "string", "a"),
    (pa.timestamp("ns"), MOMENT, "timestamp_ntz", MOMENT),
    (pa.timestamp("s", "Europe/Paris"), 0, "timestamp", dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
    (pa.duration("ms"), dt.timedelta(1), "interval day to second", dt.timedelta(1)),
    (pa.dictionary(pa.int8(), pa.string()), "a", "string", "a"),
    (pa.list_(pa.uint8()), [1, None], "array<smallint>", [1, None]),
    (pa.struct([("n", pa.uint16())]), {"n": 1}, "struct<n:int>", {"n": 1}),
    (pa.map_(pa.string(), pa.uint8()), [("a", 1)], "map<string,smallint>", [("a", 1)]),
    (pa.decimal256(38, 2), Decimal("1.25"), "decimal(38,2)", Decimal("1.25")),
]


@pytest.mark.parametrize(("type_", "value", "spark_type", "read"), WIDENED, ids=str)
def test_a_type_that_spark_lacks_is_widened(
    type_: pa.DataType, value: Any, spark_type: str, read: Any
) -> None:
    batch = pa.record_batch([pa.array([value, None], type_)], names=["v"])
    schema = spark_schema(batch.schema, "state 's'")
    assert schema["v"].dataType.simpleString() == spark_type
    assert spark_batch(batch, schema, "state 's'").to_pylist() == [{"v": read}, {"v": None}]


@pytest.mark.parametrize("type_", [pa.decimal256(40, 0), pa.month_day_nano_interval()], ids=str)
def test_a_type_without_a_place_in_spark_is_refused(type_: pa.DataType) -> None:
    with pytest.raises(UserError, match=r"state 's': column 'v' is of type .* Spark does not have"):
        spark_schema(pa.schema([("v", type_)]), "state 's'")


def test_a_moment_finer_than_sparks_is_refused_and_not_rounded() -> None:
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns"))], names=["v"])
    with pytest.raises(UserError, match=r"column 'v' cannot go to Spark: .*lose data"):
        spark_batch(batch, spark_schema(batch.schema, "state 's'"), "state 's'")
