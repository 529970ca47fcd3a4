"""A DataFrame through a job and back: how many rows a second are staged, worked on, and read back.

Question: rows per second of `DataFrame -> filter -> map_batches -> Parquet -> DataFrame`, in a
session that the program has made, with workers in its slots and a checkpoint each second. A row is
a bigint and a double of `spark.range`. `staging` is all that `Job.start` does, in which executors
write the rows as Arrow files; `job` is from the moment when all workers run to the end of the job,
the last commit included; `read_back` counts and sums the output in Spark. `total` is from the start
of the job to this answer, so it holds the start of the workers, too. The output is checked after.

Java compiles what it runs often, so the first round in a session takes several times as long as the
later ones: each round is a result of its own.

Noise: machines are shared; `processor_s` is the processor time of all processes in a round.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace as hr
from headrace.engine.spark.session import open_session

from .measure import processor_s, run_and_measure

#: As in a session of the user's own: what an embedded one does otherwise.
_OWN = {"spark.python.worker.reuse": "true", "spark.python.daemon.module": "pyspark.daemon"}


def run(
    *, rows: int = 10_000_000, parallelism: int = 2, rounds: int = 3
) -> Iterator[dict[str, Any]]:
    """Run so many rounds in one session, and yield a flat object for each."""
    # Staging needs slots beside those of workers; a rescale is not measured here.
    session = open_session("bench-dataframe", slots=2 * parallelism, settings=_OWN)
    try:
        for number in range(1, rounds + 1):
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                found = _round(session, Path(folder), rows, parallelism)
            yield {"bench": "dataframe", "round": number, "rows": rows} | found
    finally:
        session.stop()


def _round(session: SparkSession, folder: Path, rows: int, parallelism: int) -> dict[str, Any]:
    df = frame(session, rows, partitions=parallelism)
    taken = hr.read.dataframe(df, name="rows").filter(pc.field("key") >= 0)
    doubled = taken.map_batches(lambda b: {"key": b["key"], "value": pc.multiply(b["value"], 2)})
    job = hr.Job(
        "bench-dataframe",
        doubled.write.parquet(str(folder / "out"), name="out"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="1s"),
        parallelism=parallelism,
    )
    processor, began = processor_s(), time.monotonic()
    measured = run_and_measure(job, "spark", spark=session)
    ended = time.monotonic()
    output = job.to_dataframe("out", spark=session)
    output.agg(f.count("*"), f.sum("key"), f.sum("value")).collect()
    read, processor = time.monotonic(), processor_s() - processor
    spent = {
        "staging": measured.starting_s,
        "job": measured.running_s,
        "read_back": read - ended,
        "total": read - began,
    }
    return {
        **{f"{part}_rows_per_s": round(rows / took) for part, took in spent.items()},
        **{f"{part}_s": round(took, 3) for part, took in spent.items()},
        "processor_s": round(processor, 2),
        "correct": is_exact(output, rows),
        "parallelism": parallelism,
        **measured.checkpoints("1s"),
    }


def frame(session: SparkSession, rows: int, *, partitions: int) -> DataFrame:
    """The rows: `key` counts from 0, `value` is half of it."""
    ids = session.range(0, rows, 1, partitions)
    return ids.select(f.col("id").alias("key"), (f.col("id") * 0.5).alias("value"))


def is_exact(output: DataFrame, rows: int) -> bool:
    """Whether each key is there once, with its doubled value."""
    odd = (f.col("value") != f.col("key")) | (f.col("key") < 0) | (f.col("key") >= rows)
    (row,) = output.agg(
        f.count("*").alias("n"), f.count_distinct("key").alias("keys"), f.count_if(odd).alias("odd")
    ).collect()
    return (row["n"], row["keys"], row["odd"]) == (rows, rows, 0)
