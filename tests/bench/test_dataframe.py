"""`headrace bench dataframe`: rates by part, and a check of the output that sees each fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.bench.dataframe import frame, is_exact
from headrace.bench.measure import processes, processor_s
from headrace.engine.spark.session import open_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = open_session("bench", slots=2, master="local[2,4]")
    yield session
    session.stop()


def test_a_row_that_is_lost_doubled_or_changed_is_seen(spark: SparkSession) -> None:
    output = frame(spark, 4, partitions=2).selectExpr("key", "value * 2 as value")
    one = output.where("key = 1")
    assert is_exact(output, 4)
    assert not is_exact(output, 5)
    assert not is_exact(output.union(one), 4)
    assert not is_exact(output.where("key > 0").union(one), 4)
    assert not is_exact(output.selectExpr("key", "value + 1 as value"), 4)


def test_processor_time_is_of_this_process_and_those_below_it() -> None:
    before = processor_s()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert processor_s() > before
    assert processes()[os.getpid()][0] == os.getppid()


@pytest.mark.usefixtures("only_long")
def test_a_round_tells_the_rates_of_its_parts() -> None:
    words = ["bench", "dataframe", "--rows", "20000", "--rounds", "1", "--json"]
    program = "from headrace.engine.cli.main import main; raise SystemExit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["correct"] is True
    assert all(found[f"{part}_rows_per_s"] > 0 for part in ("staging", "job", "read_back", "total"))
