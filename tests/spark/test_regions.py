"""Jobs of several regions on one Spark session: their slots add up, and each restarts alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.engine.session.regions import RegionsSession

ROWS = 24_000


def job(folder: Path, parallelism: int) -> hr.Job:
    logged = hr.read.sequence(ROWS, name="numbers", keys=5, rate=3000).logged(name="log")
    counts = logged.key_by("key").aggregate(n=hr.count(), name="count")
    return hr.Job(
        "regions",
        counts.write.parquet(str(folder / "out"), name="out"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="200ms"),
        parallelism=parallelism,
    )


def test_too_few_slots_for_all_regions_together_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(hr.UserError, match="the job needs 4 slots, Spark has 2"):
        job(tmp_path, 2).start("spark", spark=spark)


def test_a_killed_worker_sends_its_region_back_alone(spark: SparkSession, tmp_path: Path) -> None:
    handle = job(tmp_path, 1).start("spark", spark=spark)
    session = handle._session
    assert isinstance(session, RegionsSession)
    for region in ("log", "numbers"):
        done = session.regions()[region].completed
        while session.regions()[region].completed < done + 2:
            assert not any(status.phase.value == "ended" for status in session.regions().values())
            time.sleep(0.05)
        os.kill(session.regions()[region].workers[0], signal.SIGKILL)
    assert handle.wait(240).outcome == "finished"
    assert {name: status.restarts for name, status in session.regions().items()} == {
        "numbers": 1,
        "log": 1,
    }
    table = ds.dataset(str(tmp_path / "out")).to_table()
    found = list(zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert len(set(found)) == len(found), "a count is emitted once"
    assert dict(sorted(found)) == dict.fromkeys(range(5), ROWS // 5)
