"""Keyed count: how many records per second pass a keyed exchange into state, with and without
checkpoints.

Question: records per second of `sequence -> key_by -> count and sum` on one machine; unit: records
per second of wall time between the moment when all workers run and the end of the job, the last
commit included. A record is an int64 key of 100,000 distinct ones, an int64 timestamp, an int64
sequence and 76 bytes of payload (104 bytes). The payload crosses the exchange like the rest:
nothing is pruned or pre-aggregated before it. The answer is checked key by key.

Noise: machines are shared; compare figures of one run only, as ratios.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.options import Runner

from .measure import all_batches, run_and_measure

KEYS = 100_000
PAYLOAD_BYTES = 76


def run(
    *,
    records: int = 30_000_000,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str | None = "1s",
    checkpoint_dir: str | None = None,
) -> dict[str, Any]:
    """Run once. Returns one flat object: `records_per_s`, `correct`, `parallelism`, `checkpoints`,
    `checkpoint_p50_ms`, ...

    Args:
        checkpoint_interval: None: no checkpoints.
        checkpoint_dir: None: a temporary folder.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source = hr.from_source(
            SequenceSource(
                rows=records, key_count=KEYS, payload_bytes=PAYLOAD_BYTES, batch_rows=32768
            ),
            name="sequence",
        )
        totals = source.key_by("key").aggregate(
            n=hr.count(), total=hr.sum("sequence"), emit="final", name="count"
        )
        job = hr.Job(
            "bench-count",
            totals.write.collect(name="out"),
            parallelism=parallelism,
            checkpoints=None
            if checkpoint_interval is None
            else hr.Checkpoints(checkpoint_dir or folder, interval=checkpoint_interval),
        )
        measured = run_and_measure(job, runner)
    return {
        "bench": "count",
        "records": records,
        "records_per_s": round(records / measured.running_s),
        "correct": correct(measured.result.collected["out"], records),
        "parallelism": parallelism,
        "runner": runner,
        **measured.checkpoints(checkpoint_interval),
    }


def correct(answer: pa.Table, records: int) -> bool:
    """Whether every key has its count and its sum, computed here in one plain pass over the same
    numbers.
    """
    counts = np.zeros(KEYS, dtype=np.int64)
    totals = np.zeros(KEYS, dtype=np.int64)
    for batch in all_batches(SequenceSource(rows=records, key_count=KEYS, batch_rows=1 << 20)):
        keys = batch.column("key").to_numpy()
        counts += np.bincount(keys, minlength=KEYS)
        np.add.at(totals, keys, batch.column("sequence").to_numpy())
    order = np.argsort(answer["key"].to_numpy())
    present = np.flatnonzero(counts)
    return (
        np.array_equal(answer["key"].to_numpy()[order], present)
        and np.array_equal(answer["n"].to_numpy()[order], counts[present])
        and np.array_equal(answer["total"].to_numpy()[order], totals[present])
    )
