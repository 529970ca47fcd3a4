"""Writes of a simulated worker for checkpoints: call by call, some time after the order, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.recovery.handles import SharedFile
from headrace.recovery.layout import store_path
from headrace.recovery.store import StoreError

from ...drivers.persistence import CheckpointStored, CheckpointWrite
from ...storage.databases import StoredFiles
from ...storage.spill_files import CorruptRun
from ...worker.worker_events import CheckpointPersistFailed
from ..coverage import Coverage
from ..scheduler import MICROSECOND_NS
from .environment import Environment, Process
from .storage import Call, answer_call, crash_during


class CaughtFiles(StoredFiles):
    """Files of databases whose writes are made later: stored when the write has reached storage."""

    def __init__(self, job: str, coverage: Coverage) -> None:
        super().__init__()
        self._job = job
        self._coverage = coverage
        #: {path: (checkpoint, database, file)}
        self._caught: dict[str, tuple[int, str, SharedFile]] = {}

    def upload(
        self, checkpoint: int, database: str, name: str, store: Callable[[], SharedFile]
    ) -> SharedFile:
        """See `StoredFiles`."""
        found = self.unconfirmed(database, name)
        if found is not None:
            self._coverage.count("files named that an unfinished checkpoint stored")
            return found
        file = store()
        self._caught[store_path(self._job, file.path)] = checkpoint, database, file
        return file

    def reached(self, path: str) -> None:
        """The write of the file has reached the storage."""
        if path in self._caught:
            self.uploaded(*self._caught.pop(path))


#: Returns the data to write, and the report for afterwards.
Prepare = Callable[[], tuple[Sequence[Call], CheckpointStored]]

_UNREADABLE = (OSError, StoreError, CorruptRun)


def _failed(order: CheckpointWrite, error: Exception) -> CheckpointPersistFailed:
    # Not all of the error: it names a folder of the real machine.
    return CheckpointPersistFailed(order.epoch, order.checkpoint, type(error).__name__)


class SimulatedCheckpointFiles:
    """Writes of checkpoints by `process`.

    `deliver` gets the end of each write while the process lives; `reached` each path that a write
    in pieces has stored.
    """

    def __init__(
        self,
        env: Environment,
        process: Process,
        deliver: Callable[[CheckpointStored | CheckpointPersistFailed], None],
        reached: Callable[[int, str], None],
    ) -> None:
        self._env = env
        self._process = process
        self._deliver = deliver
        self._reached = reached

    def delay_ns(self) -> int:
        """Draw how long a write takes."""
        high_ns = 2 * self._env.faults.storage_delay_ns
        return self._env.scheduler.delay_ns(50 * MICROSECOND_NS, high_ns)

    def write(self, order: CheckpointWrite, prepare: Prepare) -> None:
        """Write what is prepared now, after a delay, and report the end."""
        try:
            puts, done = prepare()
        except _UNREADABLE as error:
            failed = _failed(order, error)
            self._env.scheduler.after(self.delay_ns(), lambda: self._report(failed))
        else:
            self._env.scheduler.after(done.async_ns, lambda: self.put(puts, done))

    def put(self, puts: Sequence[Call], done: CheckpointStored) -> None:
        """The data reaches the storage now."""
        if all(self._reaches(put, done) for put in puts):
            self._deliver(done)

    def write_in_pieces(self, order: CheckpointWrite, prepare: Prepare) -> None:
        """Write file after file, as soon as a storage thread is free."""
        began_ns = self._env.scheduler.now_ns

        def begin() -> None:
            if not self._process.alive:
                return
            try:
                puts, done = prepare()
            except _UNREADABLE as error:
                self._deliver(_failed(order, error))
                return
            self._next(puts, done, began_ns)

        self._env.scheduler.after(self.delay_ns(), begin)

    def _report(self, failed: CheckpointPersistFailed) -> None:
        if self._process.alive:
            self._deliver(failed)

    def _next(self, puts: Sequence[Call], done: CheckpointStored, began_ns: int) -> None:
        if not puts:
            self._deliver(replace(done, async_ns=self._env.scheduler.now_ns - began_ns))
            return

        def put() -> None:
            if self._reaches(puts[0], done):
                self._reached(done.write.epoch, puts[0].arguments[0])
                self._next(puts[1:], done, began_ns)

        self._env.scheduler.after(self.delay_ns(), put)

    def _reaches(self, put: Call, done: CheckpointStored) -> bool:
        """Return whether the write has reached the storage, and the process lives to go on."""
        faults, storage = self._env.faults, self._env.storage
        if not self._process.alive:
            crash_during(faults, storage, put)
            return False
        _, error = answer_call(faults, storage, put)
        if error is not None:
            failed = CheckpointPersistFailed(done.write.epoch, done.write.checkpoint, str(error))
            self._deliver(failed)
        return error is None
