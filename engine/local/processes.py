"""Workers as processes of this machine: true parallelism, and a worker that can be killed.

Workers are forks of one process that has imported the engine (`forks.py`), so the replacement of a
dead worker runs within milliseconds. For each worker a thread here asks for the process, hands the
program over, and waits for the end; so a SIGKILL is noticed within milliseconds as well.

Workers have the `sys.path`, environment and working directory that this process had when the first
worker started; they import the same modules, wherever they start and whatever PYTHONPATH said. Each
worker leads a process group of its own: Ctrl-C at the terminal reaches the driver alone, which
stops the job in order, and a kill takes a worker's descendants along.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from ..contract.launcher import Entry, Incarnation, OnExit, WorkerProgram
from .child import encode
from .forks import Forked, Forks

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"

#: How long a SIGKILL may take until the process is gone; more means it hangs inside the kernel.
_KILL_S = 10.0


class ProcessLauncher:
    """Runs each worker in a Python process of its own (a `WorkerLauncher`)."""

    def __init__(
        self,
        *,
        workers: int,
        entry: Entry,
        forks: Forks | None = None,
    ) -> None:
        """Prepare `workers` processes that run `entry`. `forks`: of the launcher before."""
        assert workers >= 1, f"{workers} workers"
        self._workers = workers
        self._entry = entry
        self._on_exit: OnExit | None = None
        self._program: WorkerProgram | None = None
        self._on_failure: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._stopped = False
        #: The newest process of each worker, alive or not.
        self._processes: dict[int, Forked] = {}
        self._forks = forks or Forks()
        self._forks.enter()
        self._left = False
        #: One per process ever started.
        self._threads: list[threading.Thread] = []

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return self._workers

    @property
    def coordinator_host(self) -> str:
        """Loopback: the workers are on this machine."""
        return _HOST

    def start(
        self,
        program: WorkerProgram,
        on_failure: Callable[[str], None],
        on_exit: OnExit | None = None,
    ) -> None:
        """Start all worker processes; `on_failure` is called when the system refuses one."""
        assert self._program is None, "a launcher serves one start"
        self._program = program
        self._on_failure, self._on_exit = on_failure, on_exit
        for worker in range(self._workers):
            self._begin(Incarnation(worker, 0))

    def replace(self, worker: int, number: int, lost: int = -1) -> None:
        """Kill the remains of `worker`, frozen processes too, and start it again."""
        assert 0 <= worker < self._workers, f"worker {worker} of {self._workers}"
        with self._lock:
            previous = self._processes.get(worker)
        if previous is not None:
            previous.kill()
        self._begin(Incarnation(worker, number))

    def stop(self, timeout_s: float) -> None:
        """Wait for the processes up to `timeout_s`, then kill the remaining ones and their
        descendants.
        """
        with self._lock:
            self._stopped = True
        self._join(timeout_s)
        for process in self._processes.values():
            process.kill()
        self._join(_KILL_S)
        if not self._left:
            self._left = True
            self._forks.leave()

    def successor(self, slots: int) -> ProcessLauncher:
        """Make a launcher of a worker for each slot; they are forked from the same process."""
        return ProcessLauncher(workers=slots, entry=self._entry, forks=self._forks)

    def has_room_beside(self, workers: int) -> bool:
        """A machine has room for any number of processes."""
        return True

    def _join(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _begin(self, incarnation: Incarnation) -> None:
        thread = threading.Thread(
            target=self._attend,
            args=(incarnation,),
            name=f"headrace-process-{incarnation.worker}.{incarnation.number}",
            daemon=True,
        )
        with self._lock:
            if self._stopped:
                return
            self._threads.append(thread)
            thread.start()

    def _attend(self, incarnation: Incarnation) -> None:
        """Start one process and stay with it until it has ended."""
        assert self._program is not None
        message = encode(self._entry, self._program, incarnation, _HOST)
        try:
            with self._lock:
                if self._stopped:
                    return
                process = self._processes[incarnation.worker] = self._forks.fork()
            code = _converse(process, message)
        except OSError as error:
            self._fail(f"cannot start worker process {incarnation.worker}: {error}")
            return
        if code != 0:
            _log.info("worker %d.%d ended: %d", incarnation.worker, incarnation.number, code)
        if self._on_exit is not None:
            self._on_exit(incarnation, code)

    def _fail(self, reason: str) -> None:
        with self._lock:
            report, self._on_failure = self._on_failure, None
            stopped = self._stopped
        if report is not None and not stopped:
            report(reason)


def _converse(process: Forked, message: bytes) -> int:
    """Hand the message over, wait for the end, return the exit code. Raises: OSError: the process
    could not be made.
    """
    try:
        # A child that dies while it reads breaks the pipe; its exit code says why.
        with contextlib.suppress(BrokenPipeError):
            _write_all(process.control, message)
        return process.wait()
    finally:
        os.close(process.control)


def _write_all(descriptor: int, message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
