"""Streaming DataFrames as sources: exactly once over restarts of the job and of the query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace as hr
from headrace.engine.session import inputs

pytestmark = pytest.mark.spark


def add(folder: Path, first: int, rows: int) -> None:
    """Let a file of numbers appear in the stream's folder."""
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(first, first + rows))
    hidden = folder / f".{first}"
    hidden.write_text(lines)
    hidden.rename(folder / f"{first:06d}.json")


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


def job_of(rows: Any, folder: Path, parallelism: int = 2) -> hr.Job:
    return hr.Job(
        "streamed",
        rows.write.parquet(str(folder / "out"), name="out"),
        checkpoints=hr.Checkpoints(str(folder / "ckpt"), interval="100ms"),
        parallelism=parallelism,
    )


def written(folder: Path) -> list[int]:
    files = (folder / "out").glob("part-*")
    return sorted(n for file in files for n in pq.read_table(file)["n"].to_pylist())


def test_a_stream_is_read_to_its_end_and_goes_on_at_the_next_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    for part in range(2):
        add(source, part * 100, 100)
    for parts, parallelism in ((2, 2), (3, 1)):
        rows = hr.read.stream(stream_of(spark, source), name="rows", follow=None)
        result = job_of(rows, tmp_path, parallelism).run("threads")
        assert result.outcome == "finished"
        assert written(tmp_path) == list(range(parts * 100))
        assert not list((tmp_path / "ckpt").rglob("*.arrow"))
        add(source, parts * 100, 100)


def test_a_job_that_was_stopped_reads_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    add(source, 0, 100)
    for parts in (2, 3):
        rows = hr.read.stream(stream_of(spark, source), name="rows", follow="100ms")
        handle = job_of(rows, tmp_path, parts - 1).start("threads")
        add(source, (parts - 1) * 100, 100)
        while len(written(tmp_path)) < parts * 100:
            handle.checkpoint()
        handle.stop()
        assert handle.wait().outcome == "stopped"
        assert written(tmp_path) == list(range(parts * 100))
        assert not spark.streams.active, "the query ends with the job"


def test_a_batch_whose_manifest_is_there_is_not_staged_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The query's own checkpoint is lost with the driver, right after a batch was staged."""
    source = tmp_path / "in"
    add(source, 0, 100)
    rows = hr.read.stream(
        stream_of(spark, source).withColumn("u", f.expr("uuid()")), name="rows", follow="100ms"
    )
    handle = job_of(rows, tmp_path).start("threads")
    while len(written(tmp_path)) < 100:
        handle.checkpoint()
    handle.stop()
    handle.wait()
    # Spark has noted the batch as planned, and not as committed.
    (commit,) = (tmp_path / "ckpt").glob("streamed/staged/rows/query/commits/0")
    commit.unlink()
    commit.with_name(".0.crc").unlink(missing_ok=True)
    add(source, 100, 100)
    handle = job_of(rows, tmp_path).start("threads")
    while len(written(tmp_path)) < 200:
        handle.checkpoint()
    handle.stop()
    handle.wait()
    assert written(tmp_path) == list(range(200))


def test_batches_that_every_checkpoint_has_read_are_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LOOK_EVERY_S", 0.05)
    source, batches = tmp_path / "in", tmp_path / "ckpt" / "streamed" / "staged" / "rows"
    add(source, 0, 100)
    rows = hr.read.stream(stream_of(spark, source), name="rows", follow="50ms")
    for start in range(2):
        handle = job_of(rows, tmp_path, 2 - start).start("threads")
        for part in range(2 * start + 1, 2 * start + 3):
            while len(written(tmp_path)) < part * 100 or list(batches.glob("batches/*")):
                handle.checkpoint()
            add(source, part * 100, 100)
        handle.stop()
        assert handle.wait().outcome == "stopped"
    rest = hr.read.stream(stream_of(spark, source), name="rows", follow=None)
    assert job_of(rest, tmp_path).run("threads").outcome == "finished"
    assert written(tmp_path) == list(range(500))
    assert json.loads((batches / "passed.json").read_text())["batch"] == 4


def test_a_failing_query_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    add(source, 5, 1)
    df = stream_of(spark, source).select(f.expr("1 / (n - 5)").alias("n"))
    rows = hr.read.stream(df, name="rows", follow="100ms")
    job = hr.Job(
        "failing",
        rows.write.blackhole(name="out"),
        checkpoints=str(tmp_path / "ckpt"),
        restart=hr.Restart(attempts=0),
    )
    with pytest.raises(hr.JobFailed, match=r"the streaming query has failed: .*"):
        job.run("threads")


def test_a_batch_dataframe_is_refused(spark: SparkSession) -> None:
    with pytest.raises(hr.UserError, match=r"use read\.dataframe"):
        hr.read.stream(spark.range(3), name="rows")
