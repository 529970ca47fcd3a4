"""What a simulated worker writes for checkpoints: it reaches the storage some time after it was begun, call by call, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..runtime import worker_protocol as w
from .environment import Environment, Process
from .scheduler import MICROSECOND_NS
from .storage import Call, answer_call, crash_during


class SimulatedCheckpointFiles:
    """Writes of checkpoints by `process`. `deliver` is told of the end of each while it lives."""

    def __init__(
        self, env: Environment, process: Process, deliver: Callable[[w.WorkerEvent], None]
    ) -> None:
        self._env = env
        self._process = process
        self._deliver = deliver

    def delay_ns(self) -> int:
        """Draw how long a write takes."""
        high_ns = 2 * self._env.faults.storage_delay_ns
        return self._env.scheduler.delay_ns(50 * MICROSECOND_NS, high_ns)

    def write(self, puts: Sequence[Call], done: w.CheckpointPersisted) -> None:
        """Write in a while what was put; only then is it reported."""
        self._env.scheduler.after(done.async_ns, lambda: self.put(puts, done))

    def put(self, puts: Sequence[Call], done: w.CheckpointPersisted) -> None:
        """Now it reaches the storage."""
        faults, storage = self._env.faults, self._env.storage
        for put in puts:
            if not self._process.alive:
                crash_during(faults, storage, put)
                return
            _, error = answer_call(faults, storage, put)
            if error is not None:
                failed = w.CheckpointPersistFailed(done.epoch, done.checkpoint, str(error))
                self._deliver(failed)
                return
        self._deliver(done)
