"""Light load: what a record waits for, and what the workers take, when there is little to do.

Question: at a steady rate through one keyed exchange into a count, how old is a record when its
count is written, and how much of a processor does a worker take for it? Latency counts from the
moment when a record was due, in milliseconds of the machine's monotonic clock, of each record.
Processor time is that of the worker's process and of its children (its companion), as a share of
one core; `processor_us` is the share of one record in all workers'. With a rate of 0 one record is
made at the start, and the figures are the price of waiting.

Noise: whatever else runs delays a record that comes alone, so p99 tells about the machine, too.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.engine.connectors.memory import BlackholeSink, BlackholeWriter
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.options import Runner
from headrace.engine.coordinator.rules import Phase

from .measure import percentile, processes

_POLL_S = 0.02
#: So rarely comes the second record of a source that shall bring none.
_NEVER = 1e-6


class Due:
    """When each record is due, by the monotonic clock: the source's schedule begins with the first
    record of each subtask.
    """

    def __init__(self, rate_per_s: float, parallelism: int) -> None:
        self._each_ns = 1e9 / rate_per_s
        self._parallelism = parallelism
        self._began_ns: dict[int, int] = {}

    def __call__(
        self, sequence: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        subtask = int(sequence[0]) % self._parallelism
        if sequence[0] < self._parallelism:
            # More than once: a source tries its columns before it begins.
            self._began_ns[subtask] = time.monotonic_ns()
        return self._began_ns[subtask] + ((sequence - subtask) * self._each_ns).astype(np.int64)


@dataclass(frozen=True, slots=True)
class AgeSink(BlackholeSink):
    """Notes the age of each record in files below `folder`."""

    folder: str

    def writer(self) -> AgeWriter:
        """Make the writer of one subtask."""
        return AgeWriter(self.folder)


class AgeWriter(BlackholeWriter):
    """Appends (time, age) of each record to a file of its own, in nanoseconds."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._file = Path(folder, f"{os.getpid()}-{id(self)}").open("ab", buffering=0)  # noqa: SIM115

    def write(self, batch: pa.RecordBatch) -> None:
        """Note the ages."""
        due_ns = batch.column("due").to_numpy()
        ages = np.empty((len(due_ns), 2), dtype=np.int64)
        ages[:, 0] = time.monotonic_ns()
        ages[:, 1] = ages[:, 0] - due_ns
        self._file.write(ages.tobytes())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def run(
    *,
    rate: float = 1000.0,
    seconds: float = 10.0,
    warm_up_s: float = 3.0,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str | None = "1s",
) -> dict[str, Any]:
    """Run once. Returns one flat object.

    Args:
        rate: records per second of the whole job; 0: none.
        checkpoint_interval: None: no checkpoints.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        ages = Path(folder, "ages")
        ages.mkdir()
        job = _job(rate or _NEVER, parallelism, str(ages), folder, checkpoint_interval)
        handle = job.start(runner)
        while handle.status().phase not in (Phase.RUNNING, Phase.ENDED):
            time.sleep(_POLL_S)
        time.sleep(warm_up_s)
        workers = handle.status().workers
        began_ns, before, own = time.monotonic_ns(), _processor_s(workers), time.process_time()
        time.sleep(seconds)
        ended_ns, after = time.monotonic_ns(), _processor_s(workers)
        driver_s = time.process_time() - own
        handle.cancel()
        handle.wait()
        found = _ages_ms(ages, began_ns, ended_ns)
    took_s = (ended_ns - began_ns) / 1e9
    used_s = [after[worker] - before[worker] for worker in workers]
    return {
        "bench": "light",
        "rate": rate,
        "records": len(found),
        "latency_p50_ms": percentile(found, 50),
        "latency_p99_ms": percentile(found, 99) if len(found) >= 100 else None,
        "worker_percent": round(100 * max(used_s) / took_s, 2),
        "driver_percent": round(100 * driver_s / took_s, 2),
        "processor_us": round(1e6 * sum(used_s) / len(found), 1) if found else None,
        "parallelism": parallelism,
        "runner": runner,
        "checkpoint_interval": checkpoint_interval,
    }


def _job(
    rate: float, parallelism: int, ages: str, folder: str, checkpoint_interval: str | None
) -> hr.Job:
    source = SequenceSource(rows=None, rate_per_s=rate, columns={"due": Due(rate, parallelism)})
    counted = (
        hr.from_source(source, name="source")
        .key_by("key")
        .aggregate(n=hr.count(), due=hr.max("due"), emit="changes", name="count")
    )
    return hr.Job(
        "bench-light",
        counted.write.to(AgeSink(ages), name="out"),
        parallelism=parallelism,
        checkpoints=None
        if checkpoint_interval is None
        else hr.Checkpoints(f"{folder}/checkpoints", interval=checkpoint_interval),
    )


def _ages_ms(folder: Path, began_ns: int, ended_ns: int) -> list[float]:
    """Ages of the records that came between two times, sorted."""
    rows = [np.fromfile(path, dtype=np.int64).reshape(-1, 2) for path in folder.iterdir()]
    ages = np.concatenate([np.empty((0, 2), dtype=np.int64), *rows])
    inside = (ages[:, 0] >= began_ns) & (ages[:, 0] < ended_ns)
    return sorted((ages[inside, 1] / 1e6).tolist())


def _processor_s(workers: Mapping[int, int]) -> dict[int, float]:
    """Processor time of each worker's process and its children: {worker: seconds}."""
    used = dict.fromkeys(workers.values(), 0.0)
    for process, (parent, used_s) in processes().items():
        owner = process if process in used else parent
        if owner in used:
            used[owner] += used_s
    return {worker: used[pid] for worker, pid in workers.items()}
