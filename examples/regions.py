"""A slow and fragile part beside a quick one: each fails, checkpoints and restarts by itself.

The orders are logged, so the scoring, which now and then loses its process, sends neither the
reading nor the totals back. Notices called "failover" tell who went back, and who went on.

headrace run examples/regions.py --runner processes
"""

import os
import signal
from pathlib import Path

import pyarrow as pa

import headrace as hr

CRASHED = Path("crashed")


def score(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A model that takes its worker along, once."""
    if 6_000 in batch.column("sequence").to_pylist() and not CRASHED.exists():
        CRASHED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    scores = [n % 100 for n in batch.column("sequence").to_pylist()]
    return pa.record_batch({"order": batch.column("sequence"), "score": pa.array(scores)})


SCORED = pa.schema([("order", pa.int64()), ("score", pa.int64())])

orders = hr.read.sequence(20_000, keys=5, name="orders", rate=10_000).logged(name="orders-log")
totals = orders.key_by("key").aggregate(n=hr.count(), emit="final", name="totals")
scores = orders.map_batches(score, schema=SCORED, name="score")

job = hr.Job(
    "regions",
    totals.write.collect(name="out"),
    scores.write.parquet("scores", name="scores"),
    checkpoints=hr.Checkpoints("checkpoints", interval="1s"),
    regions=[hr.Region("orders", interval="100ms"), hr.Region("score", interval="300ms")],
    parallelism=2,
)

if __name__ == "__main__":
    job.run("processes")
