"""A cluster in pieces (`local-cluster`), with a module that only `--py-files` brings, and dynamic
allocation: Spark SQL, a job, Spark SQL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.engine.spark.standalone import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
import headrace as hr

spark = SparkSession.builder.appName("cluster").getOrCreate()

def doubled(batch):
    from brought_along import double  # imported where it runs
    return double(batch)

if __name__ == "__main__":
    folder = sys.argv[1]
    numbers = spark.range(0, 10_000, 1, 4).selectExpr("id as k")
    rows = hr.read.dataframe(numbers, name="rows")
    twice = rows.map_batches(doubled, schema=pa.schema([("k", pa.int64())]), name="twice")
    out = twice.write.parquet(folder + "/out", name="out")
    job = hr.Job("cluster", out, checkpoints=folder + "/ckpt", parallelism=2)
    print("outcome", job.run().outcome)
    spark.catalog.clearCache()
    row = job.to_dataframe("out").selectExpr("count(*) n", "sum(k) total").first()
    print("found", row.n, row.total, spark.sparkContext.master)
    spark.stop()
"""


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_submitted_program_runs_on_executors_of_its_own(tmp_path: Path, dynamic: bool) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with zipfile.ZipFile(tmp_path / "brought.zip", "w") as archive:
        archive.writestr(
            "brought_along.py",
            "import pyarrow as pa\nimport pyarrow.compute as pc\n"
            "def double(batch):\n"
            "    return pa.record_batch({'k': pc.multiply(batch['k'], 2)})\n",
        )
    settings = {
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.dynamicAllocation.enabled": str(dynamic).lower(),
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [
            str(submit),
            *("--master", "local-cluster[2,1,1024]", "--py-files", str(tmp_path / "brought.zip")),
            *words,
            str(tmp_path / "program.py"),
            str(tmp_path),
        ],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "outcome finished" in done.stdout
    assert f"found 10000 {2 * sum(range(10_000))} local-cluster" in done.stdout
