from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # ships no types
import pyarrow as pa
import pytest

import headrace as hr
from headrace.channels.partitioners.hash import Hash
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError

AT = pa.timestamp("ms")
ORDERS = pa.schema([("id", pa.int64()), ("at", AT), ("amount", pa.float64())])
PAYMENTS = pa.schema([("order", pa.int64()), ("at", AT), ("by", pa.string())])


def stream(schema: pa.Schema, name: str) -> Stream:
    empty = batches([pa.RecordBatch.from_pylist([], schema=schema)], name=name)
    return replace(empty, event_time="at")


ORDERED, PAID = stream(ORDERS, "orders"), stream(PAYMENTS, "payments")
ON = {"id": "order"}


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_the_result_has_both_sides_without_the_second_key() -> None:
    joined = ORDERED.join(PAID, ON, within="10m", name="paid")
    assert joined.schema.names == ["id", "at", "amount", "at_right", "by"]
    windowed = ORDERED.join(PAID, ON, window=hr.tumbling("1m"), name="paid")
    assert windowed.schema.names == [*joined.schema.names, "window_start", "window_end"]
    assert ORDERED.join(PAID, ON, window=hr.session("1m"), name="paid").schema == windowed.schema


def test_both_sides_are_partitioned_by_their_keys_and_a_union_is_one_side() -> None:
    both = ORDERED.union(stream(ORDERS, "more"))
    joined = replace(both, event_time="at").join(PAID, ON, within="10m", name="paid")
    plan = hr.Job("j", joined.write.collect(name="out"), parallelism=2).plan()
    keys = {e.key: e.partitioner for e in plan.edges}
    assert {k: p.columns for k, p in keys.items() if isinstance(p, Hash)} == {
        "orders->paid/0": ("id",),
        "more->paid/1": ("id",),
        "payments->paid/2": ("order",),
    }


def test_keyed_streams_are_joined_by_their_keys() -> None:
    joined = ORDERED.key_by("id").join(PAID.key_by("order"), within="1s", name="paid")
    assert joined.schema == ORDERED.join(PAID, ON, within="1s", name="paid").schema
    assert "keyed by as many columns" in sentence(
        lambda: ORDERED.key_by("id").join(PAID.key_by("order", "by"), within="1s", name="paid")
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "join takes one of within"),
        ({"within": "1s", "window": hr.tumbling("1s")}, "join takes one of within"),
        ({"within": "-1s"}, "is not a duration"),
        ({"between": ("5m", "-5m")}, "is empty; write the earlier bound first"),
        ({"between": "5m"}, "is not two durations"),
        ({"window": "1m"}, "cannot be joined in"),
        ({"window": hr.session("1us")}, "cannot be written as timestamp[ms]"),
        ({"window": hr.tumbling("1us")}, "cannot be written as timestamp[ms]"),
        ({"within": "1s", "how": "outer"}, "how='outer' is unknown"),
        ({"within": "1s", "name": None}, "join needs name="),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], problem: str) -> None:
    assert problem in sentence(lambda: ORDERED.join(PAID, ON, **{"name": "paid", **arguments}))


def test_streams_that_do_not_fit_are_refused() -> None:
    def join(left: Any = ORDERED, right: Any = PAID, on: Any = ON) -> Callable[[], object]:
        return lambda: left.join(right, on, within="1s", name="paid")

    assert "join takes a stream" in sentence(join(right="payments"))
    assert "'id' is int64 on the left and 'by' is string on the right" in sentence(
        join(on={"id": "by"})
    )
    assert "join: right: there is no column 'id'" in sentence(join(on="id"))
    timeless = replace(PAID, event_time=None)
    assert "the right stream needs to know which column" in sentence(join(right=timeless))
    doubled = stream(pa.schema([*ORDERS, pa.field("at_right", AT)]), "o")
    assert "two columns 'at_right'" in sentence(join(left=doubled))
    reserved = stream(pa.schema([*ORDERS, pa.field("__time", AT)]), "o")
    assert "which the join needs for itself" in sentence(join(left=reserved))


def test_bounds_may_be_negative_in_every_way_of_writing_them() -> None:
    for between in (("-5m", "1h"), (-300, 3600), (timedelta(minutes=-5), timedelta(hours=1))):
        joined = ORDERED.join(PAID, ON, between=between, name="paid")
        make: Any = joined.inputs[0].node.operator
        assert (make.args[2].low_ns, make.args[2].high_ns) == (-300 * 10**9, 3600 * 10**9)


def test_an_as_of_join_has_the_columns_of_both_and_the_left_event_time() -> None:
    valid = ORDERED.join_as_of(PAID, ON, name="paid")
    assert valid.schema.names == ["id", "at", "amount", "at_right", "by"]
    assert (valid.event_time, valid.late.schema) == ("at", ORDERS)
    assert "how='right' is unknown" in sentence(
        lambda: ORDERED.join_as_of(PAID, ON, how=cast(Any, "right"), name="paid")
    )
    assert "join needs name=" in sentence(lambda: ORDERED.join_as_of(PAID, ON))
    timeless = replace(PAID, event_time=None)
    assert "the right stream needs to know which column" in sentence(
        lambda: ORDERED.join_as_of(timeless, ON, name="paid")
    )


def changing(rows: int, schema: pa.Schema, name: str, seed: int) -> tuple[Stream, pa.Table]:
    """A stream of few keys whose times are out of order by up to 20 ms, and its records."""
    rng = np.random.default_rng(seed)
    at = rng.permutation(1000)[:rows]
    order = np.argsort(at + rng.integers(0, 20, rows), kind="stable")
    columns = [rng.integers(0, 5, rows), pa.array(at).view(AT), np.arange(rows)]
    table = pa.table(columns, schema=schema).take(order)
    stream = hr.read.batches(table.to_batches(max_chunksize=16), name=name, parallelism=1)
    return stream.with_watermark("at", "20ms", name=f"{name}-times"), table


def priced(how: Any, backend: Any) -> tuple[hr.Job, list[dict[str, Any]]]:
    """A job of an as-of join with windows behind it, and what pandas says that it emits."""
    sale = pa.schema([("currency", pa.int64()), ("at", AT), ("sale", pa.int64())])
    rate = pa.schema([("of", pa.int64()), ("at", AT), ("rate", pa.int64())])
    sales, sold = changing(120, sale, "sales", 1)
    rates, rated = changing(40, rate, "rates", 2)
    state = hr.State(backend=backend)
    out = sales.join_as_of(rates, {"currency": "of"}, how=how, name="priced", state=state)
    counted = out.key_by("currency").window(hr.tumbling("50ms"))
    counts = counted.aggregate(n=hr.count("rate"), name="per-window")
    sinks = [
        out.write.collect(name="out"),
        out.late.write.collect(name="late"),
        counts.write.collect(name="counts"),
        counts.late.write.collect(name="too-late"),
    ]
    expected = pd.merge_asof(
        sold.to_pandas().sort_values("at"),
        rated.to_pandas().sort_values("at").assign(at_right=lambda table: table["at"]),
        on="at",
        left_by="currency",
        right_by="of",
    ).drop(columns="of")
    expected = expected if how == "left" else expected.dropna()
    emitted = pa.Table.from_pandas(expected, out.schema, preserve_index=False)
    return hr.Job("priced", *sinks, parallelism=2), emitted.to_pylist()


@pytest.mark.parametrize(("how", "backend"), [("inner", "heap"), ("left", "rocksdb")])
def test_an_as_of_join_equals_merge_asof_through_crashes_and_rescales(
    how: str, backend: str
) -> None:
    job, expected = priced(how, backend)

    def is_right(output: Any) -> bool:
        in_order = sorted(output["out"], key=lambda row: row["sale"])
        counted = sum(row["n"] for row in output["counts"])
        return (
            in_order == sorted(expected, key=lambda row: row["sale"])
            and counted == sum(row["rate"] is not None for row in expected)
            and output["late"] == output["too-late"] == []
        )

    report = hr.testing.simulate(job, seeds=[6, 9, 15], check=is_right)
    assert report.restores > 0
    assert len(expected) > 80
