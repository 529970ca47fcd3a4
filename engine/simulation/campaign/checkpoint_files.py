"""Writes of a simulated worker for checkpoints: call by call, some time after the order, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.recovery.store import StoreError

from ...drivers.persistence import CheckpointStored, CheckpointWrite
from ...worker.worker_events import CheckpointPersistFailed
from ..scheduler import MICROSECOND_NS
from .environment import Environment, Process
from .storage import Call, answer_call, crash_during


class SimulatedCheckpointFiles:
    """Writes of checkpoints by `process`.

    `deliver` gets the end of each write while the process lives.
    """

    def __init__(
        self,
        env: Environment,
        process: Process,
        deliver: Callable[[CheckpointStored | CheckpointPersistFailed], None],
    ) -> None:
        self._env = env
        self._process = process
        self._deliver = deliver

    def delay_ns(self) -> int:
        """Draw how long a write takes."""
        high_ns = 2 * self._env.faults.storage_delay_ns
        return self._env.scheduler.delay_ns(50 * MICROSECOND_NS, high_ns)

    def write(self, puts: Sequence[Call], done: CheckpointStored) -> None:
        """Write the put data after a delay, and report the end."""
        self._env.scheduler.after(done.async_ns, lambda: self.put(puts, done))

    def put(self, puts: Sequence[Call], done: CheckpointStored) -> None:
        """The data reaches the storage now."""
        if all(self._reaches(put, done) for put in puts):
            self._deliver(done)

    def write_in_pieces(
        self,
        order: CheckpointWrite,
        prepare: Callable[[], tuple[Sequence[Call], CheckpointStored]],
    ) -> None:
        """Write file after file, as soon as a storage thread is free."""
        began_ns = self._env.scheduler.now_ns

        def begin() -> None:
            if not self._process.alive:
                return
            try:
                puts, done = prepare()
            except (OSError, StoreError) as error:
                # Not all of the error: it names a folder of the real machine.
                reason = type(error).__name__
                self._deliver(CheckpointPersistFailed(order.epoch, order.checkpoint, reason))
                return
            self._next(puts, done, began_ns)

        self._env.scheduler.after(self.delay_ns(), begin)

    def _next(self, puts: Sequence[Call], done: CheckpointStored, began_ns: int) -> None:
        if not puts:
            self._deliver(replace(done, async_ns=self._env.scheduler.now_ns - began_ns))
            return

        def put() -> None:
            if self._reaches(puts[0], done):
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
