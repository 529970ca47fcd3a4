"""Workers as processes of this machine: true parallelism, and a worker that can be killed.

Each worker has a thread here that starts the process, hands it the program, and waits for its end;
so a SIGKILL is noticed within milliseconds. The same thread lives as long as the process for a
second reason: Linux sends the parent-death signal when the *thread* that forked ends.

Children get this process's `sys.path`, so they import what it imports, wherever they start and
whatever PYTHONPATH said. Each leads a process group of its own: Ctrl-C at the terminal reaches the
driver alone, which stops the job in order, and what a worker has spawned can be killed with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ..runtime.launch import Entry, Incarnation, OnExit, WorkerProgram, default_entry
from .child import encode

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
        entry: Entry = default_entry,
        on_exit: OnExit | None = None,
    ) -> None:
        """Prepare `workers` processes that run `entry`; `on_exit` is told when one ends."""
        assert workers >= 1, f"{workers} workers"
        self._workers = workers
        self._entry = entry
        self._on_exit = on_exit
        self._program: WorkerProgram | None = None
        self._on_failure: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._stopped = False
        #: The newest process of each worker, alive or not.
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
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

    def start(self, program: WorkerProgram, on_failure: Callable[[str], None]) -> None:
        """Start all worker processes; `on_failure` is called when the system refuses one."""
        assert self._program is None, "a launcher serves one start"
        self._program = program
        self._on_failure = on_failure
        for worker in range(self._workers):
            self._begin(Incarnation(worker, 0))

    def replace(self, worker: int, number: int) -> None:
        """Kill what is left of `worker`, frozen processes too, and start it again."""
        assert 0 <= worker < self._workers, f"worker {worker} of {self._workers}"
        with self._lock:
            previous = self._processes.get(worker)
        if previous is not None:
            _kill_group(previous)
        self._begin(Incarnation(worker, number))

    def stop(self, timeout_s: float) -> None:
        """Wait for the processes up to `timeout_s`, then kill them and all they spawned."""
        with self._lock:
            self._stopped = True
        self._join(timeout_s)
        for process in self._processes.values():
            _kill_group(process)
        self._join(_KILL_S)

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
                process = _spawn()
                self._processes[incarnation.worker] = process
        except OSError as error:
            self._fail(f"cannot start worker process {incarnation.worker}: {error}")
            return
        code = _converse(process, message)
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


def _spawn() -> subprocess.Popen[bytes]:
    # -P keeps the working directory out of sys.path; os.path.abspath makes "" say the same there.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace.engine.local.child"],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        process_group=0,
        bufsize=0,
    )


def _converse(process: subprocess.Popen[bytes], message: bytes) -> int:
    """Hand over the message, wait for the end, return the exit code."""
    assert process.stdin is not None
    with contextlib.closing(process.stdin):
        # A child that dies while it reads breaks the pipe; its exit code says why.
        with contextlib.suppress(BrokenPipeError):
            _write_all(process.stdin.fileno(), message)
        return process.wait()


def _write_all(descriptor: int, message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # Gone between the two lines: the group's number is then free and the kill finds nobody.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
