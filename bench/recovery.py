"""Recovery with large state: how long a job stands still after a SIGKILL, phase by phase, against
its floor; then a rescale of the same job.

Question: milliseconds from the moment when the coordinator knows of the death to the first record
that the last stage handles again, with `state_bytes` in RocksDB and `inflight_bytes` in flight
before stages behind a slow one; as a ratio to the floor, which is the time to read those bytes once
(bandwidth measured in the same run, on the same files). In the same run, the same from the moment
when a rescale tells the job to stop, as a ratio to the recovery; from 2 to 4 each new subtask takes
over a part of one old database, from 2 to 3 or 1 some take over parts of two. And: is the first
checkpoint complete while records that were in flight are still being replayed?

source -> keyed state -> slow stage, a hash exchange before each. The state is written once at full
speed, then the slow stage sleeps for each record and everything before it fills. Windows are fixed,
and large enough for the bytes in flight.

Before the job is told to stop, the new workers fetch what the last complete checkpoint names:
`rescale_ahead_bytes`, each worker's own (two that take over parts of one database each count it),
in `rescale_ahead_ms`, which includes their start. Phases of the standstill, each from its begin:
`stop` (the last checkpoint), `begin` (the next coordinator reads it), `restored` (workers open what
they fetched); all three are `running`.

Noise: a busy machine makes every phase longer, the start of processes most of all. Compare ratios.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import pyarrow as pa

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.coordinator.coordinator_events import NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.sizes import held_on, sizes_of

Place = Literal["processes", "spark"]

_VALUE_BYTES = 4096
_PAUSE_S = 0.002
_POLL_S = 0.002
#: A job that has not come so far after this long does not.
_PATIENCE_S = 300.0
_BLOCK_BYTES = 1 << 20
#: In flight, of what was asked for, when the queues count as full.
_FULL = 0.8

_OUT = pa.schema([("key", pa.int64()), ("sequence", pa.int64()), ("payload", pa.binary())])


class Keep(hr.StatefulProcessor):
    """Keeps a value of some thousand random bytes for each key and passes records on."""

    value = hr.value_state(pa.binary())

    def open(self) -> None:
        """Draw the bytes that values are cut from: what RocksDB cannot compress."""
        self._random = random.Random(os.getpid())
        self._pool = self._random.randbytes(1 << 20)

    def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Replace the key's value."""
        at = self._random.randrange(len(self._pool) - _VALUE_BYTES)
        self.value.value = self._pool[at : at + _VALUE_BYTES]
        yield {"key": key, "sequence": row["sequence"], "payload": row["payload"]}


class Slow(hr.StatefulProcessor):
    """Sleeps for every record once the file `slow` is there; notes in `marks` when an attempt
    handles its first record.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._marked = False

    def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Pass a record on, without its payload."""
        if not self._marked:
            self._marked = True
            (self._folder / "marks" / f"{time.time_ns()}-{os.getpid()}").touch()
            self._slow = False
        self._slow = self._slow or (self._folder / "slow").exists()
        if self._slow:
            time.sleep(_PAUSE_S)
        yield {"key": key, "sequence": row["sequence"], "payload": b""}


@dataclass(frozen=True, slots=True)
class _Bench:
    """A job in a folder of its own."""

    folder: Path
    state_bytes: int
    inflight_bytes: int

    @property
    def keys(self) -> int:
        return max(1, self.state_bytes // _VALUE_BYTES)

    def job(self, parallelism: int) -> hr.Job:
        (self.folder / "marks").mkdir()
        source = SequenceSource(
            rows=None, key_count=self.keys, payload_bytes=_VALUE_BYTES, batch_rows=256
        )
        kept = (
            hr.from_source(source, name="sequence")
            .key_by("key")
            .process(Keep, schema=_OUT, name="keep")
        )
        slowed = kept.key_by("key").process(
            Slow(str(self.folder)), schema=_OUT, name="slow", state=hr.State("heap")
        )
        # Twice what is asked for: queues behind stages that work in large pieces are about half
        # full.
        window = max(1 << 20, self.inflight_bytes // (parallelism * parallelism))
        return hr.Job(
            "bench-recovery",
            slowed.write.blackhole(name="out"),
            parallelism=parallelism,
            network=hr.Network(window=window, debloat_target="0s"),
            state=hr.State("rocksdb", directory=str(self.folder / "local")),
            checkpoints=hr.Checkpoints(
                str(self.folder / "checkpoints"), interval="1s", mode="unaligned"
            ),
        )

    def slow_down(self) -> None:
        (self.folder / "slow").touch()

    def first_output_ns(self, since_ns: int) -> int | None:
        """When (wall time) the last stage of an attempt that began after `since_ns` handled its
        first record.
        """
        marks = (int(mark.name.partition("-")[0]) for mark in (self.folder / "marks").iterdir())
        return min((mark for mark in marks if mark > since_ns), default=None)


def run(
    *,
    state_bytes: int = 1 << 30,
    inflight_bytes: int = 64 << 20,
    parallelism: int = 2,
    rescale_to: int = 4,
    kills: int = 3,
    runner: Place = "processes",
    folder: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Fill, kill a worker `kills` times, rescale.

    Returns one flat object; of several kills the medians.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-recovery-", dir=folder) as place:
        bench = _Bench(Path(place), state_bytes, inflight_bytes)
        handle = bench.job(parallelism).start(runner)
        try:
            _fill(handle, bench, report)
            recoveries = []
            for number in range(kills):
                recoveries.append(_kill(handle, bench))
                report(f"kill {number + 1}: {recoveries[-1]}")
            full = _full(handle, bench)
            byte_s = _byte_s(bench.folder / "checkpoints", full)
            rescaled = _rescale(handle, bench, rescale_to)
            report(f"rescale: {rescaled}")
        finally:
            handle.cancel()
            with contextlib.suppress(hr.JobFailed, TimeoutError):
                handle.wait(_PATIENCE_S)
    found: dict[str, Any] = {
        name: round(median(recovery[name] for recovery in recoveries), 1)
        for name in recoveries[0]
        if name.endswith("_ms")
    }
    restored = median(recovery["restored_bytes"] for recovery in recoveries)
    floor_ms = restored * byte_s * 1e3
    return {
        "bench": "recovery",
        "runner": runner,
        "parallelism": parallelism,
        "kills": kills,
        "restored_bytes": int(restored),
        **found,
        "replaying_at_first_checkpoint": all(r["replaying"] for r in recoveries),
        "floor_ms": round(floor_ms, 1),
        "recovery_over_floor": round(found["first_output_ms"] / floor_ms, 2),
        "rescale_to": rescale_to,
        **{f"rescale_{name}": value for name, value in rescaled.items()},
        "rescale_over_recovery": round(rescaled["first_output_ms"] / found["first_output_ms"], 2),
    }


def _fill(handle: hr.JobHandle, bench: _Bench, report: Callable[[str], None]) -> None:
    """Write every key once; then slow down until the queues are full."""

    def written(status: Status) -> bool:
        kept = sum(n.rows_in for (task, _), n in status.numbers.items() if task == 1)
        return kept >= bench.keys

    _wait(handle, written)
    bench.slow_down()
    sizes = sizes_of(_full(handle, bench))
    report(f"{sizes.state_bytes:,} bytes of state, {sizes.inflight_bytes:,} in flight")


def _full(handle: hr.JobHandle, bench: _Bench) -> CheckpointMetadata:
    """Wait for a new checkpoint that holds what is to be in flight."""
    completed = handle.status().completed

    def full(status: Status) -> bool:
        inflight = sizes_of(status.checkpoints[-1]).inflight_bytes if status.checkpoints else 0
        return status.completed > completed and inflight >= _FULL * bench.inflight_bytes

    return _wait(handle, full).checkpoints[-1]


def _kill(handle: hr.JobHandle, bench: _Bench) -> dict[str, Any]:
    """Kill a worker.

    Times from the moment when the coordinator knew, but the first, which is from the kill.
    """
    restored = sizes_of(_full(handle, bench))
    before = handle.status()
    seen = before.notices[-1][0] if before.notices else 0
    killed_ns = time.time_ns()
    os.kill(min(before.workers.values()), signal.SIGKILL)
    _wait(handle, lambda status: _lost(status, seen))
    detected_ns = time.time_ns()
    _wait(handle, lambda status: status.epoch > before.epoch)
    claimed_ns = time.time_ns()
    _wait(handle, lambda status: status.phase in (Phase.DEPLOYING, Phase.RUNNING))
    registered_ns = time.time_ns()
    _wait(handle, lambda status: status.phase is Phase.RUNNING)
    running_ns = time.time_ns()
    first_ns = _first_output_ns(handle, bench, detected_ns)
    first = _wait(handle, lambda s: s.completed > before.completed)
    checkpoint_ns = time.time_ns()
    checkpoint = first.checkpoints[before.completed - first.completed]
    return {
        "detection_ms": _ms(detected_ns - killed_ns),
        "epoch_claimed_ms": _ms(claimed_ns - detected_ns),
        "workers_there_ms": _ms(registered_ns - detected_ns),
        "restored_ms": _ms(running_ns - detected_ns),
        "first_output_ms": _ms(first_ns - detected_ns),
        "first_checkpoint_ms": _ms(checkpoint_ns - detected_ns),
        "restored_bytes": restored.state_bytes + restored.inflight_bytes,
        "replaying": any(held_on(s, "replay").records for s in checkpoint.subtasks),
    }


def _rescale(handle: hr.JobHandle, bench: _Bench, parallelism: int) -> dict[str, Any]:
    """Rescale.

    Times from the moment when the job was told to stop; its new workers were started before that.
    """
    _full(handle, bench)
    rescaled = handle.rescale(parallelism)
    stopping_ns = time.time_ns() - rescaled.standstill_ns
    stopped_ns = stopping_ns + rescaled.standstill_ns - (rescaled.duration_ns - rescaled.stop_ns)
    first_ns = _first_output_ns(handle, bench, stopped_ns)
    return {
        "ahead_bytes": rescaled.ahead_bytes,
        "ahead_ms": _ms(rescaled.duration_ns - rescaled.standstill_ns),
        "stop_ms": _ms(stopped_ns - stopping_ns),
        "begin_ms": _ms(rescaled.begin_ns),
        "restored_ms": _ms(rescaled.standstill_ns - (stopped_ns - stopping_ns) - rescaled.begin_ns),
        "running_ms": _ms(rescaled.standstill_ns),
        "first_output_ms": _ms(first_ns - stopping_ns),
    }


def _first_output_ns(handle: hr.JobHandle, bench: _Bench, since_ns: int) -> int:
    _wait(handle, lambda _: bench.first_output_ns(since_ns) is not None)
    found = bench.first_output_ns(since_ns)
    assert found is not None, "waited for"
    return found


def _lost(status: Status, seen: int) -> bool:
    return any(n > seen and notice.kind is NoticeKind.WORKER_LOST for n, notice in status.notices)


def _wait(handle: hr.JobHandle, condition: Callable[[Status], bool]) -> Status:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition(status := handle.status()):
        if status.phase is Phase.ENDED:
            handle.wait(10.0)
            raise RuntimeError("the job ended before it was measured")
        if time.monotonic() > deadline_s:
            told = [notice.text for _, notice in status.notices[-5:]]
            raise RuntimeError(f"no progress for {_PATIENCE_S:.0f} s in {status.phase}: {told}")
        time.sleep(_POLL_S)
    return status


def _byte_s(checkpoints: Path, metadata: CheckpointMetadata) -> float:
    """Seconds a byte, reading the checkpoint's own files as the restore does: as many at once as
    there are subtasks with state.
    """
    root = checkpoints / metadata.job
    databases = [d for subtask in metadata.subtasks for d in subtask.databases]
    files = [[root / file.path for file in database.shared] for database in databases]
    began = time.perf_counter()
    with ThreadPoolExecutor(len(files) or 1) as pool:
        size = sum(pool.map(_read, files))
    return (time.perf_counter() - began) / max(size, 1)


def _read(files: Sequence[Path]) -> int:
    """Read to the end those that are still there; how many bytes."""
    buffer, size = bytearray(_BLOCK_BYTES), 0
    for file in files:
        with contextlib.suppress(FileNotFoundError), file.open("rb", buffering=0) as opened:
            while read := opened.readinto(buffer):
                size += read
    return size


def _ms(ns: int) -> float:
    return round(ns / 1e6, 1)
