"""Whole jobs over tables: runs and sinks of every name add their rows to one table, each once."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from tests.services.tables import SparkTables

from .conftest import Table, rows

ROWS = 200


def written(table: Table, stream: hr.Stream, name: str) -> Any:
    if table.kind == "delta":
        return stream.write.delta(str(table.root), name=name)
    return stream.write.iceberg("shop.orders", catalog=table.catalog, name=name)


def run(table: Table, checkpoints: str, *sinks: str, rows: int = ROWS) -> None:
    """Write numbers to each sink, in a few checkpoints."""
    numbers = hr.read.sequence(rows, name="numbers", rate=1_000.0)
    stream = numbers.select("sequence", name="chosen")
    given = hr.Checkpoints(str(table.folder / checkpoints), interval="50ms")
    job = hr.Job("job", *(written(table, stream, name) for name in sinks), checkpoints=given)
    result = job.run("threads")
    assert result.checkpoints > 1


def sequence(table: Table) -> list[int]:
    return sorted(table.read()["sequence"].to_pylist())


def test_rows_of_a_fresh_run_into_the_same_table_all_arrive(table: Table) -> None:
    """Its checkpoints have the numbers of the run before."""
    run(table, "first", "out")
    run(table, "second", "out")
    assert sequence(table) == sorted([*range(ROWS)] * 2)


def test_a_stream_that_is_written_to_one_table_twice_is_there_twice(table: Table) -> None:
    """Both sinks commit the same checkpoints of the same job."""
    run(table, "checkpoints", "one", "other")
    assert sequence(table) == sorted([*range(ROWS)] * 2)


@pytest.mark.services
def test_spark_reads_what_jobs_have_written(table: Table, spark_tables: SparkTables) -> None:
    """Encodings, partitions, nulls and times, from several files and commits."""
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("day", pa.string()),
            ("time", pa.timestamp("us", "UTC")),
            ("date", pa.date32()),
            ("small", pa.uint16()),
            ("text", pa.string()),
            ("list", pa.list_(pa.int32())),
        ]
    )
    written = [
        {
            "n": n * 1_000_003,
            "day": f"day {n % 3}",
            "time": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
            + datetime.timedelta(milliseconds=n),
            "date": datetime.date(2026, 1, 1) + datetime.timedelta(days=n),
            "small": None if n % 7 == 0 else n,
            "text": None if n % 5 == 0 else f"text {n % 11}",
            "list": [n, n + 1],
        }
        for n in range(300)
    ]
    sink = table.sink(schema, by=["day"])
    for checkpoint, first in enumerate(range(0, len(written), 100), start=1):
        batch = pa.RecordBatch.from_pylist(written[first : first + 100], schema=schema)
        transactions = table.precommitted(sink, checkpoint, batch)
        table.committer(sink).commit(checkpoint, transactions)
    if table.kind == "delta":
        found = spark_tables.delta(str(table.root))
    else:
        warehouse = table.catalog["warehouse"]
        found = spark_tables.iceberg("shop.orders", f"{table.folder}/catalog.db", warehouse)
    expected = [
        # Spark writes no field of a null.
        {name: _as_json(value) for name, value in row.items() if value is not None}
        for row in written
    ]
    assert sorted(found, key=lambda row: row["n"]) == expected


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, datetime.date) else value


def test_each_run_and_sink_has_a_token_of_its_own_and_no_other_name(table: Table) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 4, rows(1))
    table.committer(sink, job="another").commit(4, transactions)
    table.committer(sink).recover(4, transactions)
    assert table.numbers() == [1]


def test_a_note_of_a_renamed_job_goes_with_the_commit(table: Table) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1), rows(2))
    assert len(table.notes()) == len(transactions)
    table.committer(sink, "bb", job="another").recover(1, transactions)
    assert table.notes() == []
    assert pc.sum(table.read()["n"]).as_py() == 3
