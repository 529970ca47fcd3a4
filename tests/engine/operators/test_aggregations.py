from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.operators import aggregations as agg

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("t", pa.timestamp("ms", "UTC")),
        ("l", pa.list_(pa.int64())),
        ("d", pa.decimal128(10, 2)),
        ("w", pa.decimal256(50, 3)),
    ]
)


def test_the_schema_is_keys_then_results() -> None:
    schema = agg.aggregate_schema(
        ["k", "i"],
        {
            "n": agg.count(),
            "si": agg.sum("i"),
            "sf": agg.sum("f"),
            "mi": agg.mean("i"),
            "t": agg.max("t"),
        },
        SCHEMA,
    )
    assert schema.names == ["k", "i", "n", "si", "sf", "mi", "t"]
    assert schema.types[2:] == [
        pa.int64(),
        pa.int64(),
        pa.float64(),
        pa.float64(),
        pa.timestamp("ms", "UTC"),
    ]


@pytest.mark.parametrize(
    ("keys", "aggregations", "message"),
    [
        (["k"], {}, "at least one aggregation"),
        ([], {"n": agg.count()}, "at least one column"),
        (["x"], {"n": agg.count()}, "'x'"),
        (["l"], {"n": agg.count()}, "cannot be a key"),
        (["k"], {"k": agg.count()}, "another name"),
        (["k"], {"s": agg.sum("x")}, "needs column 'x'"),
        (["k"], {"s": agg.sum("k")}, "no sum of string"),
        (["k"], {"s": agg.min("l")}, "no min of list"),
        (["k"], {"s": agg.mean("d")}, "no mean of decimal128"),
        (["d"], {"n": agg.count()}, "cast it in a select, a decimal to a string"),
        (["k"], {"s": agg.mean("t")}, "no mean of timestamp"),
        (["k"], {"s": agg.first("i", by="x")}, "needs column 'x'"),
        (["k"], {"s": agg.first("i", by="l")}, "orders records by 'l', which is list"),
        (["k"], {"s": agg.count_distinct("l")}, "no count_distinct of list"),
        (["k"], {"s": agg.quantile("k", 0.5)}, "no quantile of string"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    keys: list[str], aggregations: dict[str, agg.Aggregation], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        agg.aggregate_schema(keys, aggregations, SCHEMA)


def test_sums_of_decimals_have_room_and_extremes_keep_their_type() -> None:
    sums = [agg.result_type(agg.sum(name), SCHEMA) for name in ("d", "w")]
    assert sums == [pa.decimal128(38, 2), pa.decimal256(76, 3)]
    assert agg.result_type(agg.min("d"), SCHEMA) == pa.decimal128(10, 2)
    assert agg.result_type(agg.max("k"), SCHEMA) == pa.string()


def test_an_aggregation_prints_as_it_is_written() -> None:
    assert [str(agg.sum("a")), str(agg.count())] == ["sum('a')", "count()"]


@pytest.mark.parametrize("share", [-0.1, 1.1, "0.5", True, None])
def test_a_share_is_from_0_to_1(share: object) -> None:
    with pytest.raises(UserError, match="the share is from 0 to 1"):
        agg.quantile("f", share)  # type: ignore[arg-type]  # that is the mistake


def test_counts_and_lists_are_never_null() -> None:
    named = {"n": agg.count("i"), "d": agg.count_distinct("i"), "l": agg.collect_list("i")}
    schema = agg.aggregate_schema(["k"], named | {"f": agg.first("i", by="t")}, SCHEMA)
    assert [field.nullable for field in schema][1:] == [False, False, False, True]
    assert schema.types[1:] == [pa.int64(), pa.int64(), pa.list_(pa.int32()), pa.int32()]
