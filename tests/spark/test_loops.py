"""A loop on Spark: exact, whatever dies, and over when nothing of it is anywhere."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.engine.coordinator.rules import Phase

ROWS = 12_000


def rounds(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
    """Even numbers are halved and go round, odd ones leave."""
    again = loop.filter(lambda row: row["sequence"] > 0 and row["sequence"] % 2 == 0)
    half = again.map(lambda row: row | {"sequence": row["sequence"] // 2}, again.schema)
    return half.rebalance(), loop.filter(
        lambda row: row["sequence"] % 2 == 1 or row["sequence"] == 0
    )


def odd_part(number: int) -> int:
    return number // (number & -number) if number else 0


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_kills_change_nothing(
    spark: SparkSession, tmp_path: Path, mode: Literal["aligned", "unaligned"], long: bool
) -> None:
    # Spark starts a task of this session three times again.
    kills = 6 if long else 1
    numbers = hr.read.sequence(ROWS, name="numbers", keys=7, rate=ROWS / (2 + 2 * kills))
    out = numbers.iterate(rounds, name="rounds")
    job = hr.Job(
        "loops",
        out.write.parquet(str(tmp_path / "out"), name="out"),
        parallelism=2,
        checkpoints=hr.Checkpoints(str(tmp_path / "checkpoints"), interval="200ms", mode=mode),
        restart=hr.Restart(attempts=100),
    )
    handle = job.start("spark", spark=spark)
    for kill in range(kills):
        done = handle.status().completed
        while handle.status().completed < done + 2:
            assert handle.status().phase is not Phase.ENDED, handle.wait(1)
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(handle.status().workers[kill % 2], signal.SIGKILL)
    result = handle.wait(300)
    assert result.outcome == "finished"
    assert result.restarts >= 1
    found = pq.read_table(tmp_path / "out")["sequence"].to_pylist()
    assert sorted(found) == sorted(map(odd_part, range(ROWS)))
