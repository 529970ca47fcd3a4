"""Output of sinks as DataFrames."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import headrace as hr

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["parquet", "json", "collect"])
def test_output_is_a_dataframe(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = hr.read.sequence(1_000, name="rows").select("sequence", "key")
    sinks = {
        "parquet": lambda: rows.write.parquet(str(tmp_path / "out"), name="out"),
        "json": lambda: rows.write.json(str(tmp_path / "out"), name="out"),
        "collect": lambda: rows.write.collect(name="out"),
    }
    job = hr.Job("out", sinks[kind](), parallelism=2)
    before = job.to_dataframe("out", spark=spark)
    assert (before.count(), before.columns) == (0, ["sequence", "key"])
    job.run("threads")
    df = job.to_dataframe("out", spark=spark)
    assert sorted(row["sequence"] for row in df.collect()) == list(range(1_000))


def test_types_that_spark_lacks_are_widened(spark: SparkSession) -> None:
    batch = pa.record_batch({"small": pa.array([7], pa.uint8()), "text": ["x"]})
    rows = hr.read.batches([batch], name="rows")
    job = hr.Job("wide", rows.write.collect(name="out"), parallelism=1)
    job.run("threads")
    df = job.to_dataframe("out", spark=spark)
    assert df.dtypes == [("small", "smallint"), ("text", "string")]
    assert [tuple(row) for row in df.collect()] == [(7, "x")]


def test_a_sink_without_output_and_an_unknown_one_are_refused(spark: SparkSession) -> None:
    rows = hr.read.sequence(1, name="rows")
    job = hr.Job("none", rows.write.blackhole(name="dropped"), parallelism=1)
    with pytest.raises(hr.UserError, match=r"'dropped' \(write\.blackhole\) keeps no output"):
        job.to_dataframe("dropped", spark=spark)
    with pytest.raises(hr.UserError, match="did you mean 'dropped'"):
        job.to_dataframe("droped", spark=spark)


def test_without_a_session_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    rows = hr.read.sequence(1, name="rows")
    job = hr.Job("none", rows.write.collect(name="out"), parallelism=1)
    with pytest.raises(hr.UserError, match=r"^to_dataframe: this process has no Spark session; "):
        job.to_dataframe("out")
