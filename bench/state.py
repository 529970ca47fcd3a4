"""State on RocksDB: what an incremental checkpoint writes, and how long the owner thread stands still for one.

Two questions, asked of one database of `state_bytes` of which a fraction changes between checkpoints:

- bytes that the checkpoints write to storage, over the bytes that changed (keys and values, uncompressed); beside it the bytes of the first
  checkpoint, which writes everything;
- the longest time for which a thread that only ticks (as the owner thread would) stands still while layers are applied, files are
  flushed and linked, and what is new is stored; and the longest call of `commit` and `snapshot`.

A third one, of a whole job: records per second of a count by key on RocksDB with a checkpoint every few seconds, see `bench.count` for
what is counted; keys are read and written, not kept in memory.

Noise: machines are shared; a busy one makes the ticking thread wait for a processor. `idle_stall_ms` is its longest wait without any work.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.engine.api.options import Runner
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.operators.base import DatabaseSnapshot, StateLayout
from headrace.engine.runtime.databases import StoredFiles
from headrace.engine.runtime.snapshots import write_checkpoint
from headrace.engine.runtime.storage import FsspecStore
from headrace.engine.runtime.work import Cut, SubtaskId
from headrace.engine.state.rocks import RocksDatabase, Writes
from headrace.engine.state.rocks_files import RocksSizes
from headrace.inflight.confirmed import Confirmed
from headrace.recovery.metadata import DatabaseHandle

from .measure import run_and_measure

_KEY_BYTES = 20
_VALUE_BYTES = 100
_ENTRY_BYTES = _KEY_BYTES + _VALUE_BYTES
_CALL_KEYS = 5_000
_SUBTASK = SubtaskId(0, 0)
_TICK_S = 0.0005
_IDLE_S = 1.0


@dataclass(slots=True)
class Ticks:
    """A thread that does nothing but tick: what it misses, any other Python thread would have."""

    longest_s: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    _thread: threading.Thread = field(init=False)

    def _run(self) -> None:
        before = time.perf_counter()
        while not self._stopped.is_set():
            time.sleep(_TICK_S)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before - _TICK_S)
            before = now


class _Raw:
    """A state whose writes are entries."""

    layout = StateLayout("raw", 1, pa.schema([("k", pa.binary()), ("v", pa.binary())]))

    def entries(self, writes: Writes) -> Any:
        return writes.items()


class _Run:
    """One database under work, and where its checkpoints go."""

    def __init__(self, folder: str) -> None:
        self.database = RocksDatabase(f"{folder}/db", "bench/0", range(128), RocksSizes())
        self.database.add(_Raw())
        self.store = FsspecStore(f"{folder}/checkpoints")
        self.stored = StoredFiles()
        self.rng = np.random.default_rng(1)
        self.owner_s = 0.0
        self.number = 0

    def write(self, keys: np.ndarray[Any, Any]) -> None:
        """Change these keys, in calls of some thousand."""
        for first in range(0, len(keys), _CALL_KEYS):
            some = keys[first : first + _CALL_KEYS]
            values = self.rng.bytes(len(some) * _VALUE_BYTES)
            writes: dict[bytes, bytes] = {
                b"%c%c%018d" % (0, key % 128, key): values[at : at + _VALUE_BYTES]
                for key, at in zip(some.tolist(), range(0, len(values), _VALUE_BYTES), strict=True)
            }
            self.database.settle()
            self.database.stage("raw", writes)
            self._timed(self.database.commit)

    def checkpoint(self, meanwhile: np.ndarray[Any, Any]) -> int:
        """Take one, complete it, and return the bytes it wrote. `meanwhile` these keys are changed beside it."""
        self.number += 1
        frozen: list[DatabaseSnapshot] = []
        self._timed(lambda: frozen.append(self.database.snapshot()))
        found: list[DatabaseHandle] = []
        storage = threading.Thread(target=lambda: found.append(self._stored(frozen[0])))
        storage.start()
        self.write(meanwhile)
        storage.join()
        self.stored.confirmed(self.number)
        own = sum(file.length for file in found[0].own)
        new = [file for file in found[0].shared if file.path.startswith(f"shared/{self.number}-")]
        return own + sum(file.length for file in new)

    def _stored(self, snapshot: DatabaseSnapshot) -> DatabaseHandle:
        cut = Cut(_SUBTASK, self.number, False, (), (), (), (), (), 0, 0)
        written = write_checkpoint(
            *(self.store, "bench", self.number, 0, 1, {_SUBTASK: [("bench", snapshot)]}, [cut]),
            Confirmed(),
            stored=self.stored,
        )
        return written.databases[_SUBTASK][0]

    def _timed(self, call: Any) -> None:
        began = time.perf_counter()
        call()
        self.owner_s = max(self.owner_s, time.perf_counter() - began)


def run(
    *,
    state_bytes: int = 1 << 30,
    changed_percent: float = 1.0,
    checkpoints: int = 50,
    folder: str | None = None,
) -> dict[str, Any]:
    """Fill a database, then change `changed_percent` of its keys, chosen at random, before each of some checkpoints."""
    keys = max(1, state_bytes // _ENTRY_BYTES)
    changed = max(1, int(keys * changed_percent / 100))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=folder) as place:
        work = _Run(place)
        with Ticks() as idle:
            time.sleep(_IDLE_S)
        work.write(np.arange(keys))
        full_bytes = work.checkpoint(np.arange(0))
        written = 0
        began = time.perf_counter()
        with Ticks() as busy:
            for _ in range(checkpoints):
                written += work.checkpoint(work.rng.choice(keys, changed, replace=False))
        seconds = time.perf_counter() - began
        work.database.close()
    changed_bytes = checkpoints * changed * _ENTRY_BYTES
    return {
        "bench": "state",
        "state_bytes": keys * _ENTRY_BYTES,
        "changed_percent": changed_percent,
        "checkpoints": checkpoints,
        "full_bytes": full_bytes,
        "written_bytes": written,
        "written_over_changed": round(written / changed_bytes, 2),
        "written_over_full": round(written / checkpoints / full_bytes, 4),
        "checkpoint_ms": round(1000 * seconds / checkpoints, 1),
        "owner_call_max_ms": round(1000 * work.owner_s, 3),
        "stall_max_ms": round(1000 * busy.longest_s, 3),
        "idle_stall_ms": round(1000 * idle.longest_s, 3),
    }


def run_count(
    *,
    records: int = 30_000_000,
    keys: int = 10_000_000,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str = "5s",
    backend: str = "rocksdb",
) -> dict[str, Any]:
    """Count records by key with the state on `backend`; `correct` says whether no record was lost or counted twice."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source = SequenceSource(rows=records, key_count=keys, batch_rows=32_768)
        stream = hr.from_source(source, name="sequence").select("key")
        totals = stream.key_by("key").aggregate(n=hr.count(), emit="final", name="count")
        summed = totals.map_batches(_sum, schema=_SUM, name="sum")
        job = hr.Job(
            "bench-state",
            summed.write.collect(name="out"),
            parallelism=parallelism,
            state=hr.State("rocksdb" if backend == "rocksdb" else "heap"),
            checkpoints=hr.Checkpoints(f"{folder}/checkpoints", interval=checkpoint_interval),
        )
        measured = run_and_measure(job, runner)
    out = measured.result.collected["out"]
    return {
        "bench": "state-count",
        "backend": backend,
        "records": records,
        "keys": sum(out["keys"].to_pylist()),
        "records_per_s": round(records / measured.running_s),
        "correct": sum(out["n"].to_pylist()) == records,
        "parallelism": parallelism,
        "runner": runner,
        **measured.checkpoints(checkpoint_interval),
    }


_SUM = pa.schema([("keys", pa.int64()), ("n", pa.int64())])


def _sum(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"keys": [batch.num_rows], "n": [int(batch["n"].to_numpy().sum())]}
