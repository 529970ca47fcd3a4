"""The keyed count in Spark Structured Streaming: two executors of one core each, state on their
heaps (Spark's default provider).

Spark knows no run without checkpoints: each micro-batch ends in one. So the arm without takes all
records in one micro-batch, and the other one takes micro-batches of as many records as the first
arm handled in an interval. Left alone, Spark would count before the exchange and leave the payload
out; here a `repartition` before the count and a minimum of the payload's length keep both from
happening, for our operators do neither.

The source goes on for ever: the query is stopped behind the last micro-batch, and the answer is the
state at that one. Time runs from the trigger of the first to the end of the last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

PAYLOAD = bytes(range(76))


def session(workers: int, folder: Path) -> SparkSession:
    """Start a cluster of as many executors, each a process."""
    settings = {
        "spark.sql.shuffle.partitions": workers,
        "spark.sql.ansi.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.streaming.numRecentProgressUpdates": 100_000,
    }
    builder = SparkSession.builder.master(f"local-cluster[{workers},1,1024]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.appName("keyed-count").getOrCreate()


def totals(spark: SparkSession, given: argparse.Namespace, rows: int) -> DataFrame:
    """Return the query: records, exchange, count and sum by key."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", given.workers)
    )
    # The condition is always true, but Spark does not know, and so sends the constant.
    payload = f.when(f.col("value") >= 0, f.lit(PAYLOAD)).otherwise(f.lit(b""))
    records = source.load().select(
        (f.col("value") * given.multiplier % given.keys).alias("key"),
        "timestamp",
        f.col("value").alias("sequence"),
        payload.alias("payload"),
    )
    return (
        records.repartition(given.workers, "key")
        .groupBy("key")
        .agg(
            f.count("*").alias("n"),
            f.sum("sequence").alias("total"),
            f.min(f.length("payload")),
            f.max("timestamp"),
        )
    )


def await_batches(query: StreamingQuery, batches: int) -> list[dict[str, Any]]:
    """Return the progress of so many micro-batches, once they ended."""
    while True:
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        if len(progress) >= batches:
            return [json.loads(each.json) for each in progress[:batches]]
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        time.sleep(0.05)


def running_s(progress: list[dict[str, Any]]) -> float:
    """From the trigger of the first micro-batch to the end of the last."""
    first, last = (datetime.fromisoformat(progress[i]["timestamp"]) for i in (0, -1))
    last_ms: int = progress[-1]["durationMs"]["triggerExecution"]
    return (last - first).total_seconds() + last_ms / 1e3


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser()
    for name in ("records", "keys", "multiplier", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--interval-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    rows = given.records
    if given.interval_s:
        rows = min(rows, int((given.rate or given.records) * given.interval_s))
    batches = -(-given.records // rows)
    spark = session(given.workers, given.folder)
    checkpoints = str(given.folder / "checkpoints")
    query = (
        totals(spark, given, rows)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoints)
        .start()
    )
    progress = await_batches(query, batches)
    query.stop()
    state = spark.read.format("statestore").option("batchId", batches - 1).load(checkpoints)
    answer = state.select("key.key", "value.count", "value.sum")
    answer.write.mode("append").csv(str(given.folder / "answer"))
    result = {"records": rows * batches, "running_s": running_s(progress), "checkpoints": batches}
    print(json.dumps(result))
    logs = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    logs = logs / "work" / spark.sparkContext.applicationId
    spark.stop()
    shutil.rmtree(logs, ignore_errors=True)


if __name__ == "__main__":
    main()
