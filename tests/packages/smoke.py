"""Runs an installed headrace in an empty folder: python smoke.py core|spark.

It stands alone: nothing of the clone is imported. Each check is a sentence; a wrong answer ends it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

import headrace as hr

RECORDS = 20_000


class Slow:
    """A stage that holds records back, so that checkpoints find some in flight."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take 50 microseconds a record."""
        time.sleep(batch.num_rows * 50e-6)
        return batch


class Visits(hr.StatefulProcessor):
    """Counts by key in declared state."""

    seen = hr.value_state(pa.int64(), default=0)

    def process(self, key: int, row: dict[str, int]) -> list[dict[str, int]]:
        """Count, and tell of each key's thousandth record."""
        self.seen.value += 1
        return [{"key": key, "seen": self.seen.value}] if self.seen.value % 1000 == 0 else []


def job(folder: str, records: int = RECORDS) -> hr.Job:
    """Records through a slow stage into files, with unaligned checkpoints."""
    numbers = hr.read.sequence(records, keys=4, name="numbers")
    slow = numbers.rebalance().map_batches(Slow, name="slow")
    return hr.Job(
        "smoke",
        slow.write.parquet(f"{folder}/out", name="out"),
        parallelism=2,
        checkpoints=hr.Checkpoints(f"{folder}/ck", interval="100ms", mode="unaligned"),
    )


def written(folder: str) -> list[int]:
    """The numbers in the files, sorted."""
    table = ds.dataset(f"{folder}/out").to_table(columns=["sequence"])
    return sorted(table["sequence"].to_pylist())


def check_state_in_threads() -> str:
    """Declared state, by threads."""
    schema = pa.schema({"key": pa.int64(), "seen": pa.int64()})
    keyed = hr.read.sequence(RECORDS, keys=4, name="numbers").key_by("key")
    reached = keyed.process(Visits, schema=schema, name="visits")
    made = hr.Job("visits", reached.write.collect(name="out"), parallelism=2)
    result = made.run("threads")
    assert result.collected["out"].num_rows == RECORDS // 1000, result.collected["out"].num_rows
    return "state in threads"


def check_rescale_in_processes() -> str:
    """A rescale from an unaligned checkpoint, by processes; each number is written once."""
    handle = job("processes").start("processes")
    handle.rescale(3)
    result = handle.wait()
    assert result.outcome == "finished", result
    assert written("processes") == list(range(RECORDS))
    return "a rescale of processes"


def check_state_on_disk() -> str:
    """RocksDB, and a restart from its checkpoint."""

    def counts(records: int) -> hr.Job:
        numbers = hr.read.sequence(records, keys=100, name="numbers")
        counted = numbers.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
        return hr.Job(
            "counts",
            counted.write.collect(name="out"),
            parallelism=2,
            checkpoints=hr.Checkpoints("rocks/ck", interval="100ms"),
            state=hr.State("rocksdb"),
        )

    table = counts(RECORDS).run("threads").collected["out"]
    assert sum(table["n"].to_pylist()) == RECORDS
    return "state on disk"


def check_command() -> str:
    """The installed command reads every byte of the checkpoints that were taken."""
    command = Path(sys.executable).with_name("headrace")
    words = [str(command), "checkpoints", "verify", "processes/ck"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return "the command"


def check_embedded_spark() -> str:
    """The same pipeline on embedded Spark."""
    result = job("spark", 5_000).run("spark")
    assert result.outcome == "finished", result
    assert written("spark") == list(range(5_000))
    return "embedded Spark"


def check_dataframes() -> str:
    """A DataFrame in, a DataFrame out, and a checkpoint as a DataFrame."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").getOrCreate()
    rows = hr.read.dataframe(session.range(1000), name="rows")
    totals = rows.key_by("id").aggregate(n=hr.count(), emit="final", name="totals")
    made = hr.Job(
        "frames",
        totals.write.parquet("frames/out", name="out"),
        parallelism=2,
        checkpoints="frames/ck",
    )
    made.run("spark", spark=session)
    assert made.to_dataframe("out", spark=session).count() == 1000
    session.dataSource.register(hr.HeadraceDataSource)
    reader = session.read.format("headrace").option("path", "frames/ck").option("job", "frames")
    assert reader.option("operator", "totals").load().count() == 1000
    session.stop()
    return "DataFrames"


CHECKS = {
    "core": (
        check_state_in_threads,
        check_rescale_in_processes,
        check_state_on_disk,
        check_command,
    ),
    "spark": (check_embedded_spark, check_dataframes),
}

if __name__ == "__main__":
    assert "site-packages" in (hr.__file__ or ""), f"the clone was imported: {hr.__file__}"
    for check in CHECKS[sys.argv[1]]:
        print(check())
