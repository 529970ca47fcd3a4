"""The FLIP-76 experiment: checkpoint duration, throughput and latency of a pipeline with a slow stage, by mode.

Question: what does a checkpoint cost while queues are full? Topology: source -> map -> map -> sleepy map -> measure map, a shuffle on each edge;
the sleepy map sleeps so many milliseconds a record on average. Units: checkpoint durations in ms (trigger to durable metadata), throughput in
records/s arriving at the measure map, latency in ms from the source's emission to the measure map.

The floor of a checkpoint is measured in the same run: hops x one-way message + bytes written / write bandwidth + one metadata commit.

Source: FLIP-76, "Preliminary work" (0, 0.01 and 0.1 ms; we add 1 ms). Noise: shared machines; arms are interleaved, compare within one run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.engine.api.options import Runner
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.coordination.driver import Status
from headrace.engine.coordination.rules import Phase
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.sizes import CheckpointSizes, sizes_of

from .floor import Floor, measure_floor
from .measure import percentile

MODES = ("aligned", "unaligned", "none")
SLEEPS_MS = (0.0, 0.01, 0.1, 1.0)
PAYLOAD_BYTES = 68
#: Edges that a barrier crosses, the order to the sources, and the acknowledgement.
HOPS = 4 + 2
_SAMPLES = 16
_POLL_S = 0.02


class Sleepy:
    """Sleeps in proportion to the records of a batch."""

    def __init__(self, sleep_ms: float) -> None:
        self._sleep_s = sleep_ms / 1e3

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._sleep_s:
            time.sleep(batch.num_rows * self._sleep_s)
        return batch


class Measure:
    """Appends (time, latency, records) samples of each batch to a file of its own, all in nanoseconds."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: Any = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._file is None:
            name = f"{os.getpid()}-{id(self)}.samples"
            # Closed with the process: a function of a pipeline has no end of life to hook on.
            self._file = Path(self._folder, name).open("ab", buffering=0)  # noqa: SIM115
        now_ns = time.time_ns()
        emitted = batch.column("emitted").to_numpy()[:: max(1, batch.num_rows // _SAMPLES)]
        samples = np.empty((len(emitted), 3), dtype=np.int64)
        samples[:, 0] = now_ns
        samples[:, 1] = now_ns - emitted
        samples[:, 2] = batch.num_rows // len(emitted)
        self._file.write(samples.tobytes())
        return batch


def _emitted(sequence: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """The wall clock when the batch is made; the one column that a replay would not repeat, and nothing rests on it."""
    return np.full(len(sequence), time.time_ns(), dtype=np.int64)


def _passed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def make_job(
    mode: str, sleep_ms: float, parallelism: int, interval: str, directory: str, samples: str
) -> hr.Job:
    """The topology of the experiment, endless."""
    source = SequenceSource(rows=None, payload_bytes=PAYLOAD_BYTES, columns={"emitted": _emitted})
    stream = hr.from_source(source, name="source")
    stream = stream.shuffle().map_batches(_passed_on, name="map1")
    stream = stream.shuffle().map_batches(_passed_on, name="map2")
    stream = stream.shuffle().map_batches(Sleepy(sleep_ms), name="sleepy")
    stream = stream.shuffle().map_batches(Measure(samples), name="measure")
    checkpoints = None
    if mode != "none":
        checkpoints = hr.Checkpoints(directory, interval=interval, mode=mode)  # type: ignore[arg-type]  # checked by it
    return hr.Job(
        "flip76",
        stream.write.blackhole(name="out"),
        parallelism=parallelism,
        checkpoints=checkpoints,
    )


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen between the end of the warm-up and the end of the run."""

    seconds: float
    samples: np.ndarray[Any, np.dtype[np.int64]]
    completed: list[CheckpointMetadata]
    failed: int


def arms(mode: str | None = None, sleep_ms: float | None = None) -> Iterator[tuple[str, float]]:
    """(mode, sleep) of each arm to run, those to be compared next to each other; None: all there are."""
    for sleep in SLEEPS_MS if sleep_ms is None else (sleep_ms,):
        for name in MODES if mode is None else (mode,):
            yield name, sleep


def run(
    *,
    mode: str = "unaligned",
    sleep_ms: float = 0.1,
    parallelism: int = 2,
    runner: Runner = "processes",
    interval: str = "1s",
    seconds: float = 15.0,
    warm_up_s: float = 5.0,
) -> dict[str, Any]:
    """Run one arm for `seconds` after the warm-up. Returns one flat object with the keys of docs/cli.md, `bench flip76`."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        samples = Path(folder, "samples")
        samples.mkdir()
        directory = str(Path(folder, "checkpoints"))
        job = make_job(mode, sleep_ms, parallelism, interval, directory, str(samples))
        window = _observe(job, runner, samples, seconds, warm_up_s)
        sizes = [sizes_of(c) for c in window.completed]
        floor = measure_floor(folder, max((s.written_bytes for s in sizes), default=0))
    return {
        "bench": "flip76",
        "mode": mode,
        "sleep_ms": sleep_ms,
        "parallelism": parallelism,
        **_throughput(window),
        **_checkpoints(window, floor, sizes),
    }


def _observe(
    job: hr.Job, runner: Runner, samples: Path, seconds: float, warm_up_s: float
) -> Window:
    handle = job.start(runner)
    while handle.status().phase not in (Phase.RUNNING, Phase.ENDED):
        time.sleep(_POLL_S)
    time.sleep(warm_up_s)
    began_ns, before = time.time_ns(), handle.status()
    time.sleep(seconds)
    ended_ns, after = time.time_ns(), handle.status()
    handle.cancel()
    handle.wait()
    rows = [np.fromfile(p, dtype=np.int64).reshape(-1, 3) for p in samples.iterdir()]
    all_samples = np.concatenate(rows) if rows else np.empty((0, 3), dtype=np.int64)
    inside = (all_samples[:, 0] >= began_ns) & (all_samples[:, 0] < ended_ns)
    first_ms = began_ns // 1_000_000
    return Window(
        (ended_ns - began_ns) / 1e9,
        all_samples[inside],
        [c for c in after.checkpoints if c.created_ms >= first_ms],
        _failed(after) - _failed(before),
    )


def _failed(status: Status) -> int:
    return sum(notice.kind.value == "checkpoint_failed" for _, notice in status.notices)


def _throughput(window: Window) -> dict[str, Any]:
    records = int(window.samples[:, 2].sum())
    order = np.argsort(window.samples[:, 1])
    weights = np.cumsum(window.samples[order, 2])

    def latency_ms(share: float) -> float | None:
        if not records:
            return None
        at = int(np.searchsorted(weights, share * records))
        return round(float(window.samples[order[min(at, len(order) - 1)], 1]) / 1e6, 3)

    return {
        "records_per_s": round(records / window.seconds),
        "latency_p50_ms": latency_ms(0.5),
        "latency_p99_ms": latency_ms(0.99),
    }


def _checkpoints(window: Window, floor: Floor, sizes: Sequence[CheckpointSizes]) -> dict[str, Any]:
    durations = sorted(c.duration_ns / 1e6 for c in window.completed)
    floors = sorted(floor.checkpoint_ms(HOPS, s.written_bytes) for s in sizes)
    created = sorted(c.created_ms for c in window.completed)
    gaps = sorted(np.diff(created).tolist())
    return {
        "checkpoint_p50_ms": percentile(durations, 50),
        "checkpoint_p99_ms": percentile(durations, 99),
        "floor_ms": percentile(floors, 50),
        "floor_p99_ms": percentile(floors, 99),
        "interval_p50_ms": percentile(gaps, 50),
        "inflight_bytes": percentile(sorted(s.inflight_bytes for s in sizes), 50),
        "written_bytes": percentile(sorted(s.written_bytes for s in sizes), 50),
        "files_max": max((s.files for s in sizes), default=0),
        "completed": len(window.completed),
        "failed": window.failed,
    }
