"""Bounds of a data file are never too narrow."""

from __future__ import annotations

import datetime
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.connectors.tables.statistics import statistics


def told(columns: dict[str, Any], row_group_size: int = 2) -> Any:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=row_group_size)
    return json.loads(statistics(pq.ParquetFile(file).metadata))


def test_bounds_and_nulls_are_over_all_row_groups() -> None:
    found = told({"n": [5, None, 1, 9], "s": ["b", "a", "c", None]})
    assert found == {
        "numRecords": 4,
        "minValues": {"n": 1, "s": "a"},
        "maxValues": {"n": 9, "s": "c"},
        "nullCount": {"n": 1, "s": 1},
    }


def test_times_are_widened_to_milliseconds() -> None:
    time = datetime.datetime(2026, 11, 23, 1, 2, 3, 4567)
    found = told({"t": pa.array([time], pa.timestamp("us")), "d": [time.date()]})
    assert found["minValues"] == {"t": "2026-11-23T01:02:03.004", "d": "2026-11-23"}
    assert found["maxValues"] == {"t": "2026-11-23T01:02:03.005", "d": "2026-11-23"}
    zoned = told({"t": pa.array([time], pa.timestamp("us", "UTC"))})
    assert zoned["maxValues"] == {"t": "2026-11-23T01:02:03.005Z"}


def test_columns_without_sure_bounds_have_none() -> None:
    found = told(
        {"x": [1.0, float("nan")], "s": ["a", "b" * 33], "b": [True, False], "z": [b"", b""]}
    )
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"] == {"x": 0, "s": 0, "b": 0, "z": 0}


def test_a_group_of_nulls_alone_hides_no_bound() -> None:
    found = told({"n": pa.array([None, None, 1, 2])})
    assert "n" not in found["minValues"]
    assert found["nullCount"] == {"n": 2}
