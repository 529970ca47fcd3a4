"""Make the checkpoint of the present version of the format: python -m tests.formats.make."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import headrace as hr
from headrace.recovery.codec import VERSION

RECORDS = 4_000
KEYS = 16


class Slow:
    """Keeps records in the queues, so that the savepoint finds some in flight."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Wait for each record."""
        time.sleep(self._delay_s * batch.num_rows)
        return batch


def job_of(directory: str, *, parallelism: int, delay_s: float) -> hr.Job:
    """Counts and sums by key, on the heap and in RocksDB, behind a slow stage."""
    numbers = hr.read.sequence(RECORDS, keys=KEYS, name="numbers")
    keyed = numbers.rebalance().map_batches(Slow(delay_s), name="slow").key_by("key")
    n, total = hr.count(), hr.sum("sequence")
    disk = hr.State("rocksdb")
    heap = keyed.aggregate(n=n, total=total, emit="final", name="on-heap")
    rocks = keyed.aggregate(n=n, total=total, emit="final", name="in-rocksdb", state=disk)
    return hr.Job(
        "formats",
        heap.write.collect(name="heap"),
        rocks.write.collect(name="rocks"),
        parallelism=parallelism,
        max_parallelism=16,
        checkpoints=hr.Checkpoints(directory, interval=None, mode="unaligned"),
    )


def main() -> int:
    """Stop the job in mid-stream with a savepoint, and keep that. Returns: 0."""
    place = Path(__file__).parent / f"version-{VERSION}"
    with tempfile.TemporaryDirectory() as folder:
        handle = job_of(f"{folder}/ck", parallelism=2, delay_s=0.0005).start("threads")
        while handle.metrics().get('headrace_records_in_total{task="slow"}', 0) < RECORDS / 4:
            time.sleep(0.02)
        path = Path(handle.stop_with_savepoint(f"{folder}/saved", mode="unaligned"))
        handle.wait()
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(path, place / path.parent.name / path.name)
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    print(f"{place.name}: {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
