"""A fast and a slow branch into one union: how much a blocked channel holds up its producer.

Question: how fast a source sends its records to an unhindered branch, while aligned checkpoints
block the source's channels into a union, with blocked channels that spill and without.

    fast source -> quick map -> sink              records of this branch are timed
    fast source -> union -> sums -> sink
    slow source -> slow map -> union              delivers its barriers late

Unit: records per second that come through the quick map, from the first to the last; the job goes
on until the slow branch has ended.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.options import Runner

from .measure import run_and_measure
from .shuffle import PAYLOAD_BYTES, SUMMED, passed_on, summed
from .slow_stage import Sleepy


class Noting:
    """Sums up each batch, and notes when it came."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            with Path(self._folder, f"{os.getpid()}-{id(self)}").open("a") as file:
                file.write(f"{time.time_ns()}\n")
        return summed(batch)


def run(
    *,
    spill: bool,
    records: int = 1_000_000,
    slow_records: int = 3_000,
    sleep_ms: float = 10.0,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str = "500ms",
) -> dict[str, Any]:
    """Run once. Returns one flat object; `correct`: no record was lost or doubled."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        seen = Path(folder, "seen")
        seen.mkdir()
        fast = _source(records, "fast")
        slow = (
            _source(slow_records, "slow").shuffle().map_batches(Sleepy(sleep_ms), name="slow map")
        )
        quick = fast.shuffle().map_batches(Noting(str(seen)), schema=SUMMED, name="quick")
        both = fast.shuffle().map_batches(passed_on, name="fast map").union(slow.shuffle())
        sums = both.map_batches(summed, schema=SUMMED, name="sums")
        sinks = [quick.write.collect(name="quick out"), sums.write.collect(name="out")]
        checkpoints = hr.Checkpoints(
            str(Path(folder, "checkpoints")),
            interval=checkpoint_interval,
            alignment_timeout=None,
            spill_blocked=spill,
        )
        job = hr.Job("bench-branches", *sinks, parallelism=parallelism, checkpoints=checkpoints)
        measured = run_and_measure(job, runner)
        times_ns = [int(line) for path in seen.iterdir() for line in path.read_text().split()]
    found = [pc.sum(measured.result.collected[name]["n"]).as_py() for name in ("quick out", "out")]
    quick_s = (max(times_ns) - min(times_ns)) / 1e9
    return {
        "bench": "branches",
        "spill": spill,
        "records": records,
        "quick_records_per_s": round(records / quick_s),
        "quick_s": round(quick_s, 2),
        "job_s": round(measured.running_s, 2),
        "correct": found == [records, records + slow_records],
        "parallelism": parallelism,
        **measured.checkpoints(checkpoint_interval),
    }


def _source(records: int, name: str) -> hr.Stream:
    source = SequenceSource(rows=records, payload_bytes=PAYLOAD_BYTES, batch_rows=32768)
    return hr.from_source(source, name=name)
