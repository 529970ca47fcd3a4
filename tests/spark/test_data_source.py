"""A checkpoint of a real job, read back by Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.recovery.sizes import sizes_of

pytestmark = pytest.mark.spark

ROWS = 5_000
KEYS = 7


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a job whose slow stage is behind; the newest has many records in flight."""
    folder = tmp_path_factory.mktemp("checkpoints")
    spark.dataSource.register(hr.HeadraceDataSource)
    source = hr.read.sequence(None, keys=KEYS, name="numbers", rate=20_000)
    counts = source.rebalance().map_batches(_slow, name="slow").key_by("key")
    job = hr.Job(
        "job",
        counts.aggregate(n=hr.count(), name="totals").write.collect(name="out"),
        parallelism=2,
        checkpoints=hr.Checkpoints(str(folder), interval=None, mode="unaligned", retain=9),
    )
    handle = job.start("threads")
    try:
        while True:
            handle.checkpoint()
            newest = handle.status().checkpoints[-1]
            if sizes_of(newest).inflight_records > 1000:
                break
    finally:
        handle.cancel()
        handle.wait()
    return folder


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    import time

    time.sleep(0.02)
    return batch


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("headrace").options(path=str(folder), **options).load()


def test_state_is_a_data_frame(spark: SparkSession, folder: Path) -> None:
    totals = read(spark, folder, operator="totals", checkpoint="latest", job="job")
    assert totals.columns[:2] == ["__subtask", "__key_group"]
    assert totals.select("key").distinct().count() == totals.count() <= KEYS


def test_records_in_flight_are_a_data_frame(spark: SparkSession, folder: Path) -> None:
    flying = read(spark, folder, edge="numbers->slow/0")
    rows = flying.select("__producer", "__consumer", "__position", "sequence").collect()
    behind = read(spark, folder, edge="slow->totals/0").count()
    # The fixture has waited for so many on both edges together.
    assert len(rows) + behind > 1000
    assert rows
    positions = {(r["__producer"], r["__consumer"], r["__position"]) for r in rows}
    assert len(positions) == len({r["sequence"] for r in rows}) == len(rows)
    assert {r["__side"] for r in flying.select("__side").distinct().collect()} <= {
        "input",
        "output",
    }


def test_columns_can_be_chosen_by_a_schema(spark: SparkSession, folder: Path) -> None:
    source = spark.read.format("headrace").options(path=str(folder), operator="totals")
    assert source.schema("key BIGINT").load().columns == ["key"]
    with pytest.raises(PySparkException, match="column 'key' is of type bigint, not string"):
        source.schema("key STRING").load().collect()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"either option\(\"operator\", NAME\)"),
        ({"operator": "a", "edge": "b"}, "either option"),
        ({"operator": "nobody"}, "has no operator 'nobody'"),
        ({"operator": "totals", "checkpoint": "99"}, "no complete checkpoint 99"),
        ({"operator": "totals", "checkpoint": "newest"}, "neither"),
        ({"operater": "totals"}, "no option 'operater'; did you mean 'operator'"),
        ({"edge": "numbers->slow/0", "state": "s"}, "goes with option"),
    ],
)
def test_mistakes_are_told(folder: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(hr.UserError, match=said):
        hr.HeadraceDataSource({"path": str(folder), **options}).schema()


def test_spark_passes_on_what_is_told(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(PySparkException, match="has no operator 'nobody'"):
        read(spark, folder, operator="nobody")
