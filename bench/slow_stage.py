"""A pipeline with a slow stage, and what is seen of it: the topology of the FLIP-76 experiment,
which other benchmarks vary.

source -> map -> map -> slow map -> measure map, a shuffle on each edge. The measure map notes when
records arrive and how old they are.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.engine.connectors.sequence import Column, SequenceSource
from headrace.engine.contract.options import Runner
from headrace.engine.contract.units import duration_ns
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.sizes import CheckpointSizes, sizes_of

from . import slowed_storage
from .floor import Floor, measure_floor
from .measure import percentile, rank_of, run_and_measure
from .waits import Waited, Waits

#: With 68 bytes of payload and four integers a record has about 104 bytes.
PAYLOAD_BYTES = 68
#: Edges that a barrier crosses, the order to the sources, and the acknowledgement.
HOPS = 4 + 2
_SAMPLES = 16
#: Records a second, about; the work of a stage that does not sleep.
_RATE_WITHOUT_SLEEP = 2_000_000.0
_POLL_S = 0.02
_NETWORK = hr.Network()

#: "slowed": see `slowed_storage.py`.
Storage = Literal["local", "slowed"]

#: Batch in, batch out: the slow stage.
Stage = Callable[[pa.RecordBatch], pa.RecordBatch]


class Sleepy:
    """Sleeps in proportion to the records of a batch."""

    def __init__(self, sleep_ms: float) -> None:
        self._sleep_s = sleep_ms / 1e3

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._sleep_s:
            time.sleep(batch.num_rows * self._sleep_s)
        return batch


class Sleeping:
    """Sleeps so many seconds a call, however many records it gets."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(self._seconds)
        return batch


class Computing:
    """Computes in pure Python for so many seconds a call: it wants the GIL all the time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ends, number = time.monotonic() + self._seconds, 1
        while time.monotonic() < ends:
            for _ in range(1000):
                number = number * 48271 % 2147483647
        return batch


class Holding:
    """Holds the GIL for so many seconds a call, as a C extension may."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # PyDLL, unlike CDLL, keeps the GIL during the call.
        ctypes.PyDLL(None).usleep(int(self._seconds * 1e6))
        return batch


class Measure:
    """Appends samples of each batch to a file of its own: (time, latency, records), the times in
    nanoseconds; the records of a batch's samples add up to the batch.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: Any = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.num_rows:
            return batch
        if self._file is None:
            name = f"{os.getpid()}-{id(self)}.samples"
            # Closed with this object, of which each subtask has one: only classes are closed.
            self._file = Path(self._folder, name).open("ab", buffering=0)  # noqa: SIM115
        now_ns = time.time_ns()
        every = max(1, batch.num_rows // _SAMPLES)
        emitted = batch.column("emitted").to_numpy()[::every]
        samples = np.empty((len(emitted), 3), dtype=np.int64)
        samples[:, 0] = now_ns
        samples[:, 1] = now_ns - emitted
        samples[:, 2] = every
        samples[-1, 2] = batch.num_rows - every * (len(emitted) - 1)
        self._file.write(samples.tobytes())
        return batch

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


def _emitted(sequence: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """The wall clock when the batch is made; the one column that a replay would not repeat, and
    nothing rests on it.
    """
    return np.full(len(sequence), time.time_ns(), dtype=np.int64)


def _hot_key(sequence: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """Three of ten records have key 0; the others have 10,000 keys."""
    mixed = (sequence.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    numbers = mixed.astype(np.int64)
    return np.where(numbers % 10 < 3, 0, 1 + numbers // 10 % 10_000)


def _passed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True, slots=True)
class Arm:
    """One variation of the experiment.

    Attributes:
        mode: of the checkpoints: "aligned", "unaligned" (in-flight data ad hoc), "continuous"
            (unaligned, with a log), "none".
        storage: of the checkpoints.
        skewed: 30 % of the records have one key, and the slow stage gets its records by key instead
            of a shuffle.
        isolate: the slow stage runs in a process of its own.
        warm_up_s: time for the queues to fill, not observed.
        seconds: to watch at least; an arm with checkpoints is watched for up to `patience_s` longer
            until `checkpoints_min` of them have completed.
    """

    mode: str
    stage: Stage
    parallelism: int = 2
    interval: str = "1s"
    network: hr.Network = _NETWORK
    runner: Runner = "processes"
    storage: Storage = "local"
    skewed: bool = False
    isolate: bool = False
    warm_up_s: float = 5.0
    seconds: float = 15.0
    checkpoints_min: int = 3
    patience_s: float = 60.0

    def job(self, directory: str, samples: str, records: int | None = None) -> hr.Job:
        """The pipeline of so many records, endless by default; checkpoints go to `directory`,
        samples of the measure map to `samples`.
        """
        columns: dict[str, Column] = {"emitted": _emitted}
        if self.skewed:
            columns["hot"] = _hot_key
        source = SequenceSource(rows=records, payload_bytes=PAYLOAD_BYTES, columns=columns)
        stream = hr.from_source(source, name="source")
        stream = stream.shuffle().map_batches(_passed_on, name="map1")
        stream = stream.shuffle().map_batches(_passed_on, name="map2")
        spread = stream.key_by("hot").stream if self.skewed else stream.shuffle()
        stream = spread.map_batches(self.stage, isolate=self.isolate, name="slow")
        stream = stream.shuffle().map_batches(Measure(samples), name="measure")
        return hr.Job(
            "slow-stage",
            stream.write.blackhole(name="out"),
            parallelism=self.parallelism,
            checkpoints=self._checkpoints(directory),
            network=self.network,
        )

    def floor(self, folder: str, size_bytes: int) -> Floor:
        """Measured in a local folder; slowed storage has its own: the request for the metadata,
        since a checkpoint may write nothing else, and the line of each worker for the bytes.
        """
        measured = measure_floor(folder, size_bytes, writers=self.parallelism)
        if self.storage == "local":
            return measured
        byte_s = 1 / (slowed_storage.BYTES_PER_S * self.parallelism)
        return Floor(measured.hop_s, byte_s, slowed_storage.REQUEST_S)

    def _checkpoints(self, directory: str) -> hr.Checkpoints | None:
        if self.storage == "slowed":
            directory = f"{slowed_storage.SCHEME}://{directory}"
        match self.mode:
            case "none":
                return None
            case "aligned":
                return hr.Checkpoints(directory, self.interval, alignment_timeout=None)
            case "continuous":
                return hr.Checkpoints(directory, self.interval, "unaligned", inflight="continuous")
            case _:
                return hr.Checkpoints(directory, interval=self.interval, mode="unaligned")


@dataclass(frozen=True)
class Seen:
    """What an arm showed after its warm-up.

    Attributes:
        samples: rows of (time, latency, records) from the measure map; nanoseconds.
        completed: checkpoints triggered and completed in that time, oldest first; `warm_up`: those
            before.
        underway_ms: how long the checkpoint that was under way at the end had taken by then, if
            that is longer than each of `completed` took.
        restarts: attempts that failed, from the start on; more than none spoils a measurement.
        waits: of the workers' threads for a processor.
    """

    seconds: float
    samples: np.ndarray[Any, np.dtype[np.int64]]
    warm_up: list[CheckpointMetadata]
    completed: list[CheckpointMetadata]
    underway_ms: float | None
    failed: int
    restarts: int
    floor: Floor
    waits: Waits

    @cached_property
    def sizes(self) -> list[CheckpointSizes]:
        """Of each completed checkpoint."""
        return [sizes_of(checkpoint) for checkpoint in self.completed]

    @property
    def records_per_s(self) -> float:
        """Arriving at the measure map."""
        return int(self.samples[:, 2].sum()) / self.seconds

    def latency_ms(self, percent: int) -> float | None:
        """Percentile of the records' ages, from the source's emission on; None of too few
        samples.
        """
        if rank_of(percent, len(self.samples)) is None:
            return None
        order = np.argsort(self.samples[:, 1])
        weights = np.cumsum(self.samples[order, 2])
        at = int(np.searchsorted(weights, percent / 100 * weights[-1]))
        return round(float(self.samples[order[min(at, len(order) - 1)], 1]) / 1e6, 3)

    @property
    def durations_ms(self) -> list[float]:
        """Of the checkpoints, trigger to durable metadata; ascending."""
        return sorted(c.duration_ns / 1e6 for c in self.completed)

    def duration_ms(self, percent: int) -> float | None:
        """Percentile of the checkpoints' durations."""
        return percentile(self.durations_ms, percent)

    def waited(self, percent: int) -> Waited | None:
        """How long threads waited for a processor during the checkpoint whose duration
        `duration_ms` gives; None if it gives none.
        """
        rank = rank_of(percent, len(self.completed))
        if rank is None:
            return None
        at = sorted(self.completed, key=lambda c: c.duration_ns)[rank]
        began_ns = at.created_ms * 1_000_000
        return self.waits.between(began_ns, began_ns + at.duration_ns)

    @property
    def floors_ms(self) -> list[float]:
        """The physical floor of each checkpoint: of the bytes that it wrote; ascending."""
        return sorted(self.floor.checkpoint_ms(HOPS, s.written_bytes) for s in self.sizes)

    def floor_ms(self, percent: int) -> float | None:
        """Percentile of the checkpoints' floors."""
        return percentile(self.floors_ms, percent)

    def interval_ms(self, percent: int) -> float | None:
        """Percentile of the time from trigger to trigger."""
        return percentile(sorted(np.diff([c.created_ms for c in self.completed]).tolist()), percent)

    def median_bytes(self, values: Sequence[int]) -> float | None:
        """The middle one."""
        return percentile(sorted(values), 50)


def observe(arm: Arm) -> Seen:
    """Run one arm: start it, let it warm up, watch it, cancel it, and measure the floor in the same
    place.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        samples = Path(folder, "samples")
        samples.mkdir()
        job = arm.job(str(Path(folder, "checkpoints")), str(samples))
        handle = job.start(arm.runner)
        while handle.status().phase not in (Phase.RUNNING, Phase.ENDED):
            time.sleep(_POLL_S)
        running_ns = time.time_ns()
        time.sleep(arm.warm_up_s)
        began_ns, before = time.time_ns(), handle.status()
        with Waits(before.workers.values()) as waits:
            _watch(handle, arm, began_ns)
        ended_ns, after = time.time_ns(), handle.status()
        handle.cancel()
        handle.wait()
        completed = _triggered_since(began_ns, after)
        written = max((sizes_of(c).written_bytes for c in completed), default=0)
        return Seen(
            seconds=(ended_ns - began_ns) / 1e9,
            samples=_samples(samples, began_ns, ended_ns),
            warm_up=list(after.checkpoints[: len(after.checkpoints) - len(completed)]),
            completed=completed,
            underway_ms=_underway_ms(arm, after, running_ns, ended_ns),
            failed=_noticed(after, "checkpoint_failed") - _noticed(before, "checkpoint_failed"),
            restarts=_noticed(after, "attempt_failed"),
            floor=arm.floor(folder, written),
            waits=waits,
        )


def work_rate(arm: Arm, records: int) -> float:
    """Records per second of an arm that works off so many records, from the moment when all workers
    run to the end of the job: fixed work, so that no mode gains by leaving records in its queues.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        samples = Path(folder, "samples")
        samples.mkdir()
        job = arm.job(str(Path(folder, "checkpoints")), str(samples), records)
        return records / run_and_measure(job, arm.runner).running_s


def records_for(sleep_ms: float, parallelism: int, seconds: float) -> int:
    """Records that keep a stage with this sleep busy for about so long: the same for every mode."""
    per_s = parallelism * 1e3 / sleep_ms if sleep_ms else _RATE_WITHOUT_SLEEP
    return max(1, round(seconds * min(per_s, _RATE_WITHOUT_SLEEP)))


def _watch(handle: hr.JobHandle, arm: Arm, began_ns: int) -> None:
    """Let the time of an arm go by."""
    time.sleep(arm.seconds)
    deadline_s = time.monotonic() + (0.0 if arm.mode == "none" else arm.patience_s)
    while time.monotonic() < deadline_s:
        if len(_triggered_since(began_ns, handle.status())) >= arm.checkpoints_min:
            return
        time.sleep(_POLL_S)


def _triggered_since(began_ns: int, status: Status) -> list[CheckpointMetadata]:
    return [c for c in status.checkpoints if c.created_ms >= began_ns // 1_000_000]


def _underway_ms(arm: Arm, status: Status, running_ns: int, ended_ns: int) -> float | None:
    """See `Seen.underway_ms`. A checkpoint is triggered an interval after the one before, or when
    that has completed; after a failed one the time is not known.
    """
    if arm.mode == "none" or _noticed(status, "checkpoint_failed"):
        return None
    interval_ns = duration_ns(arm.interval, option="interval")
    triggered_ns = running_ns + interval_ns
    if status.checkpoints:
        last = status.checkpoints[-1]
        triggered_ns = last.created_ms * 1_000_000 + max(interval_ns, last.duration_ns)
    longest_ns = max((c.duration_ns for c in status.checkpoints), default=0)
    age_ns = ended_ns - triggered_ns
    return round(age_ns / 1e6, 3) if age_ns > longest_ns else None


def _samples(folder: Path, began_ns: int, ended_ns: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    rows = [np.fromfile(path, dtype=np.int64).reshape(-1, 3) for path in folder.iterdir()]
    samples = np.concatenate(rows) if rows else np.empty((0, 3), dtype=np.int64)
    inside = (samples[:, 0] >= began_ns) & (samples[:, 0] < ended_ns)
    return samples[inside]


def _noticed(status: Status, kind: str) -> int:
    return sum(notice.kind.value == kind for _, notice in status.notices)
