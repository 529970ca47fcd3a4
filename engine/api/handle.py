"""A started job, and what a finished one leaves behind.

`JobHandle` is what users hold. Behind it stands a `Session`, which the coordination room provides; the handle adds what
only the program knows: the tables of its collect sinks, and the plan at another parallelism. A rescale replaces the session,
and whoever waits goes on waiting for the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from ..plan.validate import check_parallelism
from .errors import HeadraceError

if TYPE_CHECKING:
    from ..coordination.driver import Status


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

    def stop(self) -> None:
        """Take a last checkpoint and end; `wait` then returns."""
        ...

    def cancel(self) -> None:
        """End at once."""
        ...

    def wait(self, timeout_s: float | None) -> JobResult:
        """Wait for the end. Raises: JobFailed; TimeoutError."""
        ...

    def status(self) -> Status:
        """Return a look at the job now."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        ...


#: (parallelism) to what starts a session from a checkpoint's number; the first call raises UserError if there is no such plan.
Rescaling = Callable[[int], Callable[[int], Session]]


class JobHandle:
    """A started job. Its methods may be called from any thread."""

    __slots__ = ("_collected", "_earlier", "_name", "_rescaling", "_session", "_swap")

    def __init__(
        self,
        name: str,
        session: Session,
        *,
        collected: Mapping[str, Callable[[], pa.Table]],
        rescaling: Rescaling,
    ) -> None:
        """Hold a session that has been started.

        Args:
            collected: {name of a collect sink: reads its table}.
        """
        self._name = name
        self._session = session
        self._collected = collected
        self._rescaling = rescaling
        #: What became of the sessions before this one, each ended by a rescale.
        self._earlier: list[JobResult] = []
        # Held while one session is replaced by the next, so that whoever saw the first end can tell that from the job's end.
        self._swap = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._name

    def checkpoint(self) -> int:
        """Take a checkpoint now. Returns its number when it is complete. Raises: HeadraceError when it fails."""
        return self._session.checkpoint()

    def rescale(self, parallelism: int) -> None:
        """Take a last checkpoint, stop, and go on from it at another parallelism. Operators with their own keep it.

        Raises: UserError before anything stops, when the job keeps no checkpoints or `parallelism` is above its max
            parallelism; HeadraceError when there was no checkpoint to go on from, which leaves the job ended.
        """
        check_parallelism(parallelism, where="rescale: parallelism")
        with self._swap:
            launch = self._rescaling(parallelism)
            self._session.stop()
            ended = self._session.wait(None)
            if ended.last_checkpoint is None:
                raise HeadraceError(f"job {self._name!r} ended without a checkpoint to go on from")
            # A job that reached its end meanwhile is started too: its sources find nothing more and it ends again.
            self._session = launch(ended.last_checkpoint)
            self._earlier.append(ended)

    def stop(self) -> None:
        """Take a last checkpoint and end the job; `wait` then returns."""
        self._session.stop()

    def cancel(self) -> None:
        """End the job at once; what no checkpoint covers is not committed."""
        self._session.cancel()

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait until the job has ended.

        Args:
            timeout_s: seconds; None waits for ever.

        Raises: JobFailed when it ended in failure; TimeoutError when it still runs, which leaves it running.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            session = self._session
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            result = session.wait(left)
            with self._swap:
                if session is self._session:
                    return self._whole(result)

    def status(self) -> Status:
        """Return a look at the job now: phase, attempt, numbers of each subtask, latest notices and checkpoints."""
        return self._session.status()

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        return self._session.metrics()

    def _whole(self, last: JobResult) -> JobResult:
        """The result of all sessions together."""
        sessions = [*self._earlier, last]
        return replace(
            last,
            duration_ns=sum(session.duration_ns for session in sessions),
            checkpoints=sum(session.checkpoints for session in sessions),
            restarts=sum(session.restarts for session in sessions),
            collected={name: read() for name, read in self._collected.items()},
        )
