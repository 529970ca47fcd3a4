"""Python data sources without a session: found, described, and their rows as Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource

from headrace.engine.connectors.spark.hosted import hosted
from headrace.engine.contract.errors import HeadraceError, UserError


class Plain(DataSource):
    def schema(self) -> str:
        return f"a bigint, {self.options['Column']} array<string>"


class Bare(DataSource):
    pass


def test_options_are_text_and_found_in_any_case() -> None:
    found = hosted(Plain, {"column": "xs", "flag": True, "n": 7}, None)
    assert found.arrow == pa.schema([("a", pa.int64()), ("xs", pa.list_(pa.string()))])
    assert found.options == {"column": "xs", "flag": "true", "n": "7"}


@pytest.mark.parametrize(
    "rows",
    [
        [(1, ["x"]), (2, None)],
        [Row(xs=["x"], a=1), Row(xs=None, a=2)],
        [pa.record_batch({"xs": [["x"], None], "a": pa.array([1, 2], pa.int32())})],
    ],
)
def test_rows_become_batches_by_name_or_place(rows: list[Any]) -> None:
    found = hosted(Plain, {"column": "xs"}, None)
    batches = list(found.batches(rows))
    expected = [{"a": 1, "xs": ["x"]}, {"a": 2, "xs": None}]
    assert [row for batch in batches for row in batch.to_pylist()] == expected
    assert all(batch.schema == found.arrow for batch in batches)


def test_no_rows_are_no_batches() -> None:
    assert list(hosted(Plain, {"column": "xs"}, None).batches(iter(()))) == []


@pytest.mark.parametrize("rows", [[(1, 2, 3)], [7], [("text", [])], [pa.record_batch({"b": [1]})]])
def test_rows_that_do_not_fit_are_refused(rows: list[Any]) -> None:
    with pytest.raises(HeadraceError, match=r"^data source 'Plain' gave"):
        list(hosted(Plain, {"column": "xs"}, None).batches(rows))


@pytest.mark.parametrize(
    ("source", "schema", "reason"),
    [
        (Bare, None, "has no schema of its own; give schema="),
        (Plain, None, "gives no schema: KeyError"),
        ("no_such_module:Thing", None, "cannot be imported"),
        ("json:dumps", None, "is no class"),
        ("nowhere", None, "no installed package pyspark_... brings a data source 'nowhere'"),
        (int, "a int", "int is no pyspark.sql.datasource.DataSource"),
    ],
)
def test_mistakes_are_one_sentence(source: Any, schema: str | None, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        hosted(source, {}, schema)
    assert reason in str(caught.value)
