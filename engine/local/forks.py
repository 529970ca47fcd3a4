"""The template process as launchers see it: a launcher asks for a worker and gets a `Forked` to
wait for.

One template serves all launchers of a job, those of a rescale included. The template starts with
the first worker, starts again after its death, and ends when the last launcher has left. When it
dies Linux kills its forks; all count as ended.

A thread starts the template, reads its replies, and lives as long as the template: Linux sends the
parent-death signal when the *thread* that forked ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading

from .template import ENDED, FORK, KILL, REPLY, REQUEST


class Forked:
    """One worker process. `control` is our end of its pipe; the caller closes it, and thereby ends
    the worker.
    """

    def __init__(self, template: _Template, number: int, control: int) -> None:
        self.control = control
        self._template = template
        self._number = number
        self._over = threading.Event()
        self._code = 0
        self._error: OSError | None = None

    def kill(self) -> None:
        """Kill the process and its descendants, unless it has ended."""
        self._template.request(KILL, self._number)

    def wait(self) -> int:
        """Wait for the end and return the exit code, negative for a signal. Raises: OSError: the
        fork was refused.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._code

    def end(self, code: int, error: OSError | None = None) -> None:
        """Note that the process has ended, or was never made."""
        self._code, self._error = code, error
        self._over.set()


class Forks:
    """Makes worker processes for the launchers that have entered. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._template: _Template | None = None

    def enter(self) -> None:
        """Count one more launcher."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count one launcher less; the last one ends the template and its remaining forks."""
        with self._lock:
            self._users -= 1
            assert self._users >= 0, "left more often than entered"
            template, last = self._template, not self._users
        if template is not None and last:
            template.end()

    def fork(self) -> Forked:
        """Make a worker process. Raises: OSError."""
        with self._lock:
            return self._alive().fork()

    def _alive(self) -> _Template:
        if self._template is None or self._template.is_over:
            self._template = _Template()
        return self._template


class _Template:
    """One template process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._forks: dict[int, Forked] = {}
        self.is_over = False
        self._socket, theirs = socket.socketpair()
        started = threading.Event()
        self._refused: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(
            target=self._attend, args=(theirs, started), name="headrace-template", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._refused is not None:
            raise self._refused

    def fork(self) -> Forked:
        """Ask for a fork. Raises: OSError."""
        worker, control = os.pipe()
        with self._lock:
            number = next(self._numbers)
            forked = self._forks[number] = Forked(self, number, control)
            try:
                if self.is_over:
                    raise BrokenPipeError("the process from which workers are forked has died")
                socket.send_fds(self._socket, [REQUEST.pack(FORK, number)], [worker])
            except OSError:
                del self._forks[number]
                os.close(control)
                raise
            finally:
                os.close(worker)
        return forked

    def request(self, kind: bytes, number: int) -> None:
        """Send a request about a fork, unless the template has died, and its forks with it."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(REQUEST.pack(kind, number))

    def end(self) -> None:
        """End the template; it has nothing to put in order."""
        assert self._process is not None, "it was started"
        self._process.kill()
        self._thread.join()

    def _attend(self, theirs: socket.socket, started: threading.Event) -> None:
        try:
            with theirs:
                process = self._process = _spawn(theirs)
        except OSError as error:
            self._refused = error
            self._close(0)
            started.set()
            return
        started.set()
        # It may end in the midst of a request, which resets the connection.
        with contextlib.suppress(OSError):
            self._listen()
        # It says nothing more, so it is of no use, should it live.
        process.kill()
        self._close(process.wait() or -signal.SIGKILL)

    def _listen(self) -> None:
        with self._socket.makefile("rb") as replies:
            while len(reply := replies.read(REPLY.size)) == REPLY.size:
                kind, number, code = REPLY.unpack(reply)
                with self._lock:
                    forked = self._forks.pop(number)
                if kind == ENDED:
                    forked.end(code)
                else:
                    forked.end(0, OSError(code, os.strerror(code)))

    def _close(self, code: int) -> None:
        with self._lock:
            self.is_over = True
            left, self._forks = self._forks, {}
            self._socket.close()
        for forked in left.values():
            forked.end(code)


def _spawn(requests: socket.socket) -> subprocess.Popen[bytes]:
    # -P keeps the working directory out of sys.path; os.path.abspath makes "" say the same there.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace.engine.local.template"],
        stdin=requests.fileno(),
        env=os.environ | {"PYTHONPATH": path},
        process_group=0,
    )
