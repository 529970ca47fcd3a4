"""A started job, and what a finished one leaves behind.

`JobHandle` is what users hold. Behind it stands a `Session`, which the coordination room provides; the handle adds what
only the program knows, such as the tables of its collect sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from ..plan.validate import check_parallelism


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended. A job that failed has none: waiting for it raises `JobFailed`.

    Attributes:
        job: its name.
        duration_ns: from start to end, restarts included.
        checkpoints: completed ones.
        restarts: after failures.
        last_checkpoint: number of the newest completed one; None if there is none.
        collected: {name of a `write.collect` sink: its records}.
    """

    job: str
    duration_ns: int = 0
    checkpoints: int = 0
    restarts: int = 0
    last_checkpoint: int | None = None
    collected: Mapping[str, pa.Table] = field(default_factory=dict)


class Session(Protocol):
    """A running job as its coordinator sees it. Methods may be called from any thread."""

    def checkpoint(self) -> int:
        """Take a checkpoint now; return its number when it is complete. Raises: HeadraceError when it fails."""
        ...

    def savepoint(self, path: str) -> str:
        """Take a checkpoint that outlives the job; return where it is."""
        ...

    def rescale(self, parallelism: int) -> None:
        """Take an unaligned checkpoint and go on from it at another parallelism."""
        ...

    def stop(self) -> None:
        """Take a last checkpoint, if checkpoints are on, and end; `wait` then returns."""
        ...

    def wait(self, timeout_s: float | None) -> JobResult:
        """Wait for the end. Raises: JobFailed; TimeoutError."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        ...


@dataclass(frozen=True, slots=True)
class JobHandle:
    """A started job.

    Attributes:
        name: of the job.
    """

    name: str
    _session: Session
    #: {name of a collect sink: reads its table}.
    _collected: Mapping[str, Callable[[], pa.Table]]

    def checkpoint(self) -> int:
        """Take a checkpoint now. Returns its number when it is complete. Raises: HeadraceError when it fails."""
        return self._session.checkpoint()

    def savepoint(self, path: str) -> str:
        """Take a checkpoint that outlives the job, under `path`. Returns where it is."""
        return self._session.savepoint(path)

    def rescale(self, parallelism: int) -> None:
        """Take an unaligned checkpoint and go on from it at another parallelism.

        Raises: UserError when that is above the job's max parallelism.
        """
        check_parallelism(parallelism, where="rescale: parallelism")
        self._session.rescale(parallelism)

    def stop(self) -> None:
        """Take a last checkpoint, if checkpoints are on, and end the job; `wait` then returns."""
        self._session.stop()

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait until the job has ended.

        Args:
            timeout_s: seconds; None waits for ever.

        Raises: JobFailed when it ended in failure; TimeoutError when it still runs, which leaves it running.
        """
        result = self._session.wait(timeout_s)
        return replace(result, collected={name: read() for name, read in self._collected.items()})

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        return self._session.metrics()
