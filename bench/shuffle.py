"""Four shuffle hops: how many records per second pass through exchanges that no key demands.

Question: records per second of `sequence -> shuffle -> map -> shuffle -> map -> shuffle -> map ->
shuffle -> sink`, where the maps pass batches on unchanged: what is measured is the engine's own
cost of four random exchanges of 104-byte records. Unit: records per second (counted once, at the
source) of wall time between the moment when all workers run and the end of the job.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.options import Runner

from .measure import run_and_measure

PAYLOAD_BYTES = 76


def passed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The identity."""
    return batch


def summed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One row per batch: how many records it had, and the sum of their sequence numbers."""
    total = pc.sum(batch.column("sequence")).as_py()
    return pa.record_batch({"n": [batch.num_rows], "total": [total]}, SUMMED)


SUMMED = pa.schema([("n", pa.int64()), ("total", pa.int64())])


def run(
    *,
    records: int = 30_000_000,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str | None = "1s",
    checkpoint_dir: str | None = None,
) -> dict[str, Any]:
    """Run once. Returns one flat object like `count.run`."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source = SequenceSource(rows=records, payload_bytes=PAYLOAD_BYTES, batch_rows=32768)
        stream = hr.from_source(source, name="sequence")
        for hop in range(3):
            stream = stream.shuffle().map_batches(passed_on, name=f"hop{hop}")
        sums = stream.shuffle().map_batches(summed, schema=SUMMED, name="sums")
        job = hr.Job(
            "bench-shuffle",
            sums.write.collect(name="out"),
            parallelism=parallelism,
            checkpoints=None
            if checkpoint_interval is None
            else hr.Checkpoints(checkpoint_dir or folder, interval=checkpoint_interval),
        )
        measured = run_and_measure(job, runner)
    out = measured.result.collected["out"]
    found = (pc.sum(out["n"]).as_py(), pc.sum(out["total"]).as_py())
    return {
        "bench": "shuffle",
        "records": records,
        "records_per_s": round(records / measured.running_s),
        "correct": found == (records, records * (records - 1) // 2),
        "parallelism": parallelism,
        "runner": runner,
        **measured.checkpoints(checkpoint_interval),
    }
