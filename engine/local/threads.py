"""Workers as threads of this process: for notebooks, tests and small jobs.

One worker by default, hosting every slot, so that all channels are hand-overs within it. With
`workers=n` the slots are spread over n workers, which talk through real sockets.

A thread cannot be killed. A worker that ignores the coordinator's stop outlives `stop`, which says
so in the log; being a daemon thread, it does not keep the process alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..contract.launcher import Entry, Incarnation, OnExit, WorkerProgram

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"


class ThreadLauncher:
    """Runs workers as daemon threads (a `WorkerLauncher`)."""

    def __init__(
        self,
        *,
        workers: int = 1,
        entry: Entry,
    ) -> None:
        """Prepare `workers` threads that run `entry`."""
        assert workers >= 1, f"{workers} workers"
        self._workers = workers
        self._entry = entry
        self._on_exit: OnExit | None = None
        self._program: WorkerProgram | None = None
        self._lock = threading.Lock()
        self._stopped = False
        #: Every incarnation ever started, dead ones too.
        self._threads: list[threading.Thread] = []

    @property
    def workers(self) -> int:
        """Number of worker threads."""
        return self._workers

    @property
    def coordinator_host(self) -> str:
        """Loopback: the workers are in this process."""
        return _HOST

    def start(
        self,
        program: WorkerProgram,
        on_failure: Callable[[str], None],
        on_exit: OnExit | None = None,
    ) -> None:
        """Start all worker threads. `on_failure` is never called: a thread can always be had."""
        assert self._program is None, "a launcher serves one start"
        self._program, self._on_exit = program, on_exit
        for worker in range(self._workers):
            self.replace(worker, 0)

    def replace(self, worker: int, number: int, lost: int = -1) -> None:
        """Start `worker` again; an older thread that still runs is fenced by its lower number."""
        assert 0 <= worker < self._workers, f"worker {worker} of {self._workers}"
        thread = threading.Thread(
            target=self._run,
            args=(Incarnation(worker, number),),
            name=f"headrace-worker-{worker}.{number}",
            daemon=True,
        )
        with self._lock:
            if self._stopped:
                return
            self._threads.append(thread)
            thread.start()

    def successor(self, slots: int) -> ThreadLauncher:
        """Make a launcher of as many threads, which share out the slots."""
        return ThreadLauncher(workers=self._workers, entry=self._entry)

    def has_room_beside(self, workers: int) -> bool:
        """A thread can always be had."""
        return True

    def stop(self, timeout_s: float) -> None:
        """Wait for the threads up to `timeout_s`; the log names those that still run."""
        with self._lock:
            self._stopped = True
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        survivors = [thread.name for thread in self._threads if thread.is_alive()]
        if survivors:
            _log.warning("still running after %.1f s: %s", timeout_s, ", ".join(survivors))

    def _run(self, incarnation: Incarnation) -> None:
        assert self._program is not None
        code = 0
        try:
            self._entry(self._program, incarnation, _HOST)
        except BaseException:  # a worker's death is a report, whatever it died of
            _log.exception("worker %d.%d died", incarnation.worker, incarnation.number)
            code = 1
        if self._on_exit is not None:
            self._on_exit(incarnation, code)
