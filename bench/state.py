"""State on RocksDB: what an incremental checkpoint writes, and how long the owner thread stands
still for one.

Two questions, asked of one database of `state_bytes`, restored as one run of files, of which a
fraction changes between checkpoints:

- bytes that the checkpoints write to storage, over the bytes that changed (keys and values,
  uncompressed); beside it the bytes of a full checkpoint. Now and then all files are merged, and
  that checkpoint is as large as a full one (`written_max_bytes`): with 1 % changed between
  checkpoints, each 150 of them or so; fewer checkpoints than that say too little. Between
  checkpoints merging comes to an end, as it does in a job where seconds lie between them; so what
  is written does not depend on how busy the machine is;
- the longest time for which a thread that only ticks (as the owner thread would, see `ticks.py`)
  stands still: while a checkpoint is under way and layers are applied, files flushed and linked,
  and what is new is stored; and otherwise. And the longest call of `commit` and `snapshot`, which
  the owner thread makes, by the clock and in processor time.

Each is told as a whole and by what was waited for, a processor (`queued`) or the GIL (`held`);
`gc_pause_max_ms` is the longest pause of the collector while a checkpoint is under way.

Noise: machines are shared; a busy one makes the ticking thread wait for a processor.
`idle_stall_ms` is its longest wait without any work.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.operators import DatabaseSnapshot, RestoredDatabase, StateLayout
from headrace.engine.drivers.interpreter import freeze_loaded, hand_over_soon
from headrace.engine.drivers.warm import import_all
from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.state.rocks.database import RocksDatabase, Writes
from headrace.engine.state.rocks.files import RocksSizes
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.databases import StoredFiles
from headrace.engine.storage.snapshots import write_checkpoint
from headrace.engine.worker.subtask_events import Cut
from headrace.inflight.confirmed import Confirmed
from headrace.recovery.handles import DatabaseHandle

from .ticks import Longest, Ticks

_KEY_BYTES = 20
_VALUE_BYTES = 100
_ENTRY_BYTES = _KEY_BYTES + _VALUE_BYTES
_CALL_KEYS = 5_000
_SUBTASK = SubtaskId(0, 0)
_GROUPS = range(128)
_IDLE_S = 1.0
_REST_S = 0.005


class _Raw:
    """A state whose writes are entries."""

    layout = StateLayout("raw", 1, pa.schema([("k", pa.binary()), ("v", pa.binary())]))

    def entries(self, writes: Writes) -> Any:
        return writes.items()


class _Run:
    """One database under work, and where its checkpoints go."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.database = RocksDatabase(f"{folder}/db", "bench/0", _GROUPS, RocksSizes())
        self.database.add(_Raw())
        self.store = FsspecStore(f"{folder}/checkpoints")
        self.stored = StoredFiles()
        self.rng = np.random.default_rng(1)
        self.owner = Longest()
        self.number = 0

    def fill(self, keys: int) -> None:
        """Begin with so many, as if restored from a database without anything to merge."""
        source = f"{self._folder}/source"
        filled = rocks_files.open_database(source, RocksSizes())
        for first in range(0, keys, _CALL_KEYS):
            made = self._values(np.arange(first, min(keys, first + _CALL_KEYS)))
            rocks_files.write(filled, sorted(made.items()))
        filled.flush(True)
        filled.compact_range(None, None)
        filled.close()

        def fetch(target: str) -> None:
            for names in rocks_files.files_of(source):
                for name in names:
                    os.rename(f"{source}/{name}", f"{target}/{name}")

        self.database.restore([RestoredDatabase(_GROUPS, [_Raw.layout], 1, {}, fetch, list)])

    def write(self, keys: np.ndarray[Any, Any]) -> None:
        """Change these keys, in calls of some thousand."""
        for first in range(0, len(keys), _CALL_KEYS):
            writes = self._values(keys[first : first + _CALL_KEYS])
            self.database.settle()
            # A call looks there before it reads the database.
            self.database.recent("raw")
            self.database.stage("raw", writes)
            self._timed(self.database.commit)

    def checkpoint(self, meanwhile: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Take one and complete it.

        Returns the bytes it wrote, and those it names. `meanwhile` these keys are changed beside
        it.
        """
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
        written = own + sum(file.length for file in new)
        return written, own + sum(file.length for file in found[0].shared)

    def rest(self) -> None:
        """Wait for what is merged in the background."""
        calm = 0
        while calm < 3:
            calm = 0 if self.database.is_merging() else calm + 1
            time.sleep(_REST_S)

    def _values(self, keys: np.ndarray[Any, Any]) -> dict[bytes, bytes]:
        values = self.rng.bytes(len(keys) * _VALUE_BYTES)
        return {
            b"%c%c%018d" % (0, key % 128, key): values[at : at + _VALUE_BYTES]
            for key, at in zip(keys.tolist(), range(0, len(values), _VALUE_BYTES), strict=True)
        }

    def _stored(self, snapshot: DatabaseSnapshot) -> DatabaseHandle:
        cut = Cut(_SUBTASK, self.number, False, (), (), (), (), (), 0, 0)
        written = write_checkpoint(
            *(self.store, "bench", self.number, 0, 1, {_SUBTASK: [("bench", snapshot)]}, [cut]),
            Confirmed(),
            stored=self.stored,
        )
        self.stored.stored(self.number, written.files)
        return written.databases[_SUBTASK][0]

    def _timed(self, call: Callable[[], None]) -> None:
        with self.owner.step():
            call()


def run(
    *,
    state_bytes: int = 1 << 30,
    changed_percent: float = 1.0,
    checkpoints: int = 200,
    folder: str | None = None,
) -> dict[str, Any]:
    """Fill a database, then change `changed_percent` of its keys, chosen at random, before each of
    some checkpoints.
    """
    keys = max(1, state_bytes // _ENTRY_BYTES)
    changed = max(1, int(keys * changed_percent / 100))
    with _worker(), tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=folder) as place:
        work = _Run(place)
        with Ticks() as idle:
            time.sleep(_IDLE_S)
        work.fill(keys)
        full_bytes, _ = work.checkpoint(np.arange(0))
        taken: list[tuple[int, int]] = []
        seconds = 0.0
        with Ticks() as busy:
            for _ in range(checkpoints):
                work.rest()
                some = work.rng.choice(keys, changed, replace=False)
                began = time.perf_counter()
                with busy.marked():
                    taken.append(work.checkpoint(some))
                seconds += time.perf_counter() - began
        work.database.close()
    written = [new for new, _ in taken]
    changed_bytes = changed * _ENTRY_BYTES
    return {
        "bench": "state",
        "state_bytes": keys * _ENTRY_BYTES,
        "changed_percent": changed_percent,
        "checkpoints": checkpoints,
        "full_bytes": full_bytes,
        "written_bytes": sum(written),
        "written_over_changed": round(sum(written) / checkpoints / changed_bytes, 2),
        "written_over_changed_50": round(sum(written[:50]) / len(written[:50]) / changed_bytes, 2),
        "written_over_full": round(sum(written) / checkpoints / full_bytes, 4),
        "written_max_bytes": max(written),
        "held_over_full": round(max(held for _, held in taken) / full_bytes, 2),
        "checkpoint_ms": round(1000 * seconds / checkpoints, 1),
        **work.owner.told("owner_call"),
        "owner_call_cpu_max_ms": round(1000 * work.owner.cpu_s, 3),
        **busy.inside.told("stall"),
        "gc_pause_max_ms": round(1000 * busy.pause_s, 3),
        **busy.outside.told("between_stall"),
        "idle_stall_ms": round(1000 * idle.outside.wall_s, 3),
    }


@contextlib.contextmanager
def _worker() -> Iterator[None]:
    """Have the settings of a worker's process, and the modules that it is born with."""
    usual = sys.getswitchinterval()
    hand_over_soon()
    import_all()
    freeze_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(usual)
