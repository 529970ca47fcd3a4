"""DataFrames as sources: staged once, read by any runner, found again by the next driver."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace as hr

pytestmark = pytest.mark.spark


def numbers(spark: SparkSession, rows: int, partitions: int = 4) -> DataFrame:
    ids = spark.range(0, rows, 1, partitions)
    return ids.select(f.col("id").alias("k"), (f.col("id") * 2).alias("twice"))


def job_of(df: DataFrame, folder: Path, *, fails: bool = False, **options: Any) -> hr.Job:
    def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
        if fails:
            raise ValueError("planted")
        return batch

    rows = hr.read.dataframe(df, name="rows", **options)
    same = rows.map_batches(pass_on, schema=rows.schema, name="same")
    return hr.Job(
        "staged",
        same.write.collect(name="out"),
        checkpoints=hr.Checkpoints(str(folder / "ckpt"), interval="50ms"),
        restart=hr.Restart(attempts=0) if fails else hr.Restart(),
        parallelism=2,
    )


def keys(result: hr.JobResult) -> list[int]:
    return sorted(result.collected["out"]["k"].to_pylist())


def test_every_row_comes_in_once_and_the_staged_files_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = job_of(numbers(spark, 10_000), tmp_path)
    assert not (tmp_path / "ckpt").exists(), "nothing is staged before the job starts"
    result = job.run("threads")
    assert keys(result) == list(range(10_000))
    assert result.collected["out"].schema == pa.schema([("k", pa.int64()), ("twice", pa.int64())])
    assert not (tmp_path / "ckpt" / "staged" / "staged").exists() or not list(
        (tmp_path / "ckpt").rglob("*.arrow")
    )


def test_a_driver_that_starts_again_finds_the_staged_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Each run of this DataFrame gives other values: a second one would be seen.
    df = spark.range(0, 1_000, 1, 2).select(f.col("id").alias("k"), f.expr("uuid()").alias("u"))
    with pytest.raises(hr.JobFailed, match="planted"):
        job_of(df, tmp_path, fails=True).run("threads")
    (manifest,) = (tmp_path / "ckpt").rglob("staged.json")
    files = json.loads(manifest.read_text())["files"]
    before = sorted(u for path in files for u in pa.ipc.open_file(path).read_all()["u"].to_pylist())
    result = job_of(df, tmp_path).run("threads")
    assert keys(result) == list(range(1_000))
    assert sorted(result.collected["out"]["u"].to_pylist()) == before


def test_half_staged_records_are_staged_anew(spark: SparkSession, tmp_path: Path) -> None:
    left = tmp_path / "ckpt" / "staged" / "staged" / "rows" / uuid.uuid4().hex
    left.mkdir(parents=True)
    (left / "000000-7-0000.arrow").write_bytes(b"ARROW1 half")
    assert keys(job_of(numbers(spark, 100), tmp_path).run("threads")) == list(range(100))


def test_a_changed_dataframe_is_staged_anew(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(hr.JobFailed):
        job_of(numbers(spark, 100), tmp_path, fails=True).run("threads")
    assert keys(job_of(numbers(spark, 200), tmp_path).run("threads")) == list(range(200))


def test_a_named_place_keeps_the_records_and_begins_anew_on_request(
    spark: SparkSession, tmp_path: Path
) -> None:
    staging = tmp_path / "place"
    job = job_of(numbers(spark, 100), tmp_path, staging=str(staging))
    assert keys(job.run("threads")) == list(range(100))
    (first,) = {path.parent for path in staging.rglob("*.arrow")}
    assert keys(job.run("threads", fresh=True)) == list(range(100))
    (second,) = {path.parent for path in staging.rglob("*.arrow")}
    assert first != second


def test_a_finished_job_has_nothing_more_to_do(spark: SparkSession, tmp_path: Path) -> None:
    rows = hr.read.dataframe(numbers(spark, 100), name="rows")
    out = rows.write.parquet(str(tmp_path / "out"), name="out")
    for _ in range(2):
        hr.Job("once", out, checkpoints=str(tmp_path / "ckpt"), parallelism=2).run("threads")
        assert spark.read.parquet(str(tmp_path / "out")).count() == 100


def test_a_stopped_job_reads_on_at_another_parallelism(spark: SparkSession, tmp_path: Path) -> None:
    rows = hr.read.dataframe(numbers(spark, 200_000, 8), name="rows")
    slow = rows.map_batches(_slow, schema=rows.schema, name="slow")

    def job(parallelism: int) -> hr.Job:
        return hr.Job(
            "rescaled",
            slow.write.parquet(str(tmp_path / "out"), name="out"),
            checkpoints=hr.Checkpoints(str(tmp_path / "ckpt"), interval="50ms"),
            parallelism=parallelism,
        )

    handle = job(2).start("threads")
    handle.checkpoint()
    handle.stop()
    assert handle.wait().outcome == "stopped"
    assert list((tmp_path / "ckpt").rglob("*.arrow"))
    assert job(3).run("threads").outcome == "finished"
    found = spark.read.parquet(str(tmp_path / "out"))
    assert (found.count(), found.select("k").distinct().count()) == (200_000, 200_000)


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    import time

    time.sleep(0.05)
    return batch


def test_killed_workers_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = hr.read.dataframe(numbers(spark, 60_000, 6), name="rows")
    killed = rows.map_batches(_killing(tmp_path), schema=rows.schema, name="killed")
    job = hr.Job(
        "killed",
        killed.write.parquet(str(tmp_path / "out"), name="out"),
        checkpoints=hr.Checkpoints(str(tmp_path / "ckpt"), interval="20ms"),
        parallelism=2,
    )
    # Two workers may die at once, and go back together.
    assert job.run("processes").restarts >= 2
    assert len(list(tmp_path.glob("killed-*"))) == 3
    found = job.to_dataframe("out", spark=spark)
    assert (found.count(), found.select("k").distinct().count()) == (60_000, 60_000)


def _killing(folder: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Kill the worker that meets certain records, once each."""

    def kill(batch: pa.RecordBatch) -> pa.RecordBatch:
        import os
        import signal
        import time

        time.sleep(0.02)
        for at in (5_000, 25_000, 55_000):
            flag = folder / f"killed-{at}"
            if at in batch["k"].to_pylist() and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return kill


def test_types_of_spark_come_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(
        "select timestamp'2026-01-02 03:04:05' at, date'2026-01-02' day, 1.25BD price,"
        " array(1, null) xs, named_struct('a', 'b') s, map('k', 2L) m, cast(null as string) t"
    )
    rows = hr.read.dataframe(df, name="rows")
    result = hr.Job("types", rows.write.collect(name="out"), parallelism=1).run("threads")
    expected = df.toArrow()
    assert result.collected["out"].to_pylist() == expected.to_pylist()


def test_a_failing_dataframe_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10).select(f.expr("1 / (id - 5)").alias("k"))
    with pytest.raises(hr.HeadraceError, match=r"Spark cannot stage.*DIVIDE_BY_ZERO") as caught:
        job_of(df, tmp_path).run("threads")
    assert "\n" not in str(caught.value)


def test_a_streaming_dataframe_is_refused(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load()
    with pytest.raises(hr.UserError, match=r"read\.stream"):
        hr.read.dataframe(df, name="rows")


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([], r"^read\.dataframe: the DataFrame has no columns; select some$"),
        (["interval '1-2' year to month i"], r"^read\.dataframe: .*interval.*; leave this"),
        (["make_interval(1) i"], r"^read\.dataframe: .*interval.*; leave this column out$"),
        (["id", "id as id"], r"id"),
    ],
)
def test_columns_without_a_place_are_one_sentence(
    spark: SparkSession, columns: list[str], sentence: str
) -> None:
    with pytest.raises(hr.UserError, match=f"(?i){sentence}") as caught:
        hr.read.dataframe(spark.range(1).selectExpr(*columns), name="rows")
    assert "\n" not in str(caught.value)


class Ended:
    """A DataFrame whose session has been stopped."""

    mapInArrow = None

    @property
    def schema(self) -> object:
        raise ConnectionRefusedError(111, "Connection refused")


def test_what_is_no_live_dataframe_is_one_sentence() -> None:
    for read in (hr.read.dataframe, hr.read.stream):
        with pytest.raises(hr.UserError, match=r"takes a DataFrame of Spark, got a Table$"):
            read(pa.table({"k": [1]}), name="rows")
        with pytest.raises(hr.UserError, match=r"session has ended \(.*refused\); make"):
            read(Ended(), name="rows")  # type: ignore[arg-type]


EVERY_TYPE = """
    select timestamp_ntz'1600-01-02 03:04:05.123456' ntz, timestamp'9000-01-02 03:04:05' late,
    interval '1 02:03:04.5' day to second as span,
    cast('12345678901234567890.123456789012345678' as decimal(38,18)) wide, -0.0d zero,
    double('nan') nan, cast('ab' as char(4)) padded, binary('x') bytes, cast(1 as tinyint) tiny,
    array(named_struct('a', array(timestamp_ntz'2026-01-01 00:00:00'), 'm', map('k', 1BD))) deep
"""


def test_types_that_parquet_would_change_come_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.sql(EVERY_TYPE)
    rows = hr.read.dataframe(df, name="rows")
    result = hr.Job("types", rows.write.collect(name="out"), parallelism=1).run("threads")
    (found,), (expected,) = result.collected["out"].to_pylist(), df.toArrow().to_pylist()
    assert repr(found) == repr(expected)


def test_rows_are_staged_in_large_batches_and_settings_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    for before, rows in (("10000", 65_536), ("777", 777)):
        spark.conf.set(setting, before)
        try:
            staging = tmp_path / before
            df = numbers(spark, 100_000, partitions=1)
            keys(job_of(df, tmp_path / f"c{before}", staging=str(staging)).run("threads"))
            assert spark.conf.get(setting) == before
        finally:
            spark.conf.unset(setting)
        (file,) = staging.rglob("*.arrow")
        assert pa.ipc.open_file(file).get_batch(0).num_rows == rows
