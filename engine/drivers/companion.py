"""The companion of a worker: a small process that sends the worker's pulse, and forks the processes
of isolated operators.

The worker forks its companion first of all, before it has threads, so a fork is safe; and the
companion never has threads, so its own forks are safe as well. They are born with the worker's
imports. The companion shares no GIL with the worker: it works on while user code holds the GIL.

A socket pair joins the two. The worker sends a byte for every process that it wants, with that
process's end of a socket pair and the end of a pipe that takes the process's exit code. The end of
the socket means the worker's death. On Linux the kernel ends the companion with the worker, and the
isolated processes with the companion.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import NoReturn

from headrace.channels.handshake import Identity

from ..contract.launcher import Incarnation, WorkerProgram
from .call_board import CallBoard
from .isolated_process import CODE, IsolatedProcess, serve_speaking
from .parent import die_with_parent
from .pulse import Pulse, Pulsed

_FORK = b"F"


class Companion:
    """The worker's hold on its companion. `process` may be called from any thread."""

    def __init__(self, program: WorkerProgram, incarnation: Incarnation) -> None:
        """Fork; in the main thread of a worker's own process, before there are other threads."""
        assert threading.current_thread() is threading.main_thread(), "the owner thread is watched"
        self.calls = CallBoard()
        self._requests, theirs = socket.socketpair()
        worker = Pulsed(
            Identity(program.job, "worker", incarnation.worker, incarnation.number, 0),
            program.secret,
            program.coordinator,
            os.getpid(),
            self.calls,
        )
        # What the worker's streams still hold would be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # From Python 3.12 on any thread is warned about. Those of Arrow know about forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _be(lambda: _Companion(worker, theirs, program.network.heartbeat_ns / 1e9).serve())
        theirs.close()

    def process(self) -> IsolatedProcess:
        """Fork a process for an isolated operator. Raises: OSError."""
        ours, theirs = socket.socketpair()
        code, their_code = os.pipe()
        try:
            with theirs:
                socket.send_fds(self._requests, [_FORK], [theirs.fileno(), their_code])
        except OSError:
            ours.close()
            os.close(code)
            raise
        finally:
            os.close(their_code)
        return IsolatedProcess(ours, code)

    def stop(self) -> None:
        """End the companion, and the processes that it has forked."""
        self._requests.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


class _Companion:
    """The process itself."""

    def __init__(self, worker: Pulsed, requests: socket.socket, every_s: float) -> None:
        self._requests = requests
        self._every_s = every_s
        self._pulse = Pulse(worker)
        die_with_parent(worker.owner)
        _forget_descriptors({requests.fileno()})
        #: {process id: where its exit code goes}
        self._codes: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until the worker is gone."""
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        due_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(max(0.0, due_s - time.monotonic())):
                    if key.fileobj is woken:
                        woken.recv(4096)
                        self._reap()
                    elif not self._request():
                        return
                if due_s <= time.monotonic():
                    due_s = time.monotonic() + self._every_s
                    self._pulse.beat()

    def _request(self) -> bool:
        """Take one request. False: the worker is gone."""
        kind, (*descriptors,), _, _ = socket.recv_fds(self._requests, 1, 2)
        if not kind:
            return False
        connection, code = descriptors
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            print(f"an isolated process could not be forked: {error}", file=sys.stderr)
            os.close(code)
        else:
            if not pid:
                _be(lambda: _isolated(connection, parent))
            self._codes[pid] = code
        os.close(connection)
        return True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                code = self._codes.pop(pid)
                with contextlib.suppress(OSError):
                    os.write(code, CODE.pack(os.waitstatus_to_exitcode(status)))
                os.close(code)


def _isolated(connection: int, parent: int) -> None:
    """Be the process of an isolated operator."""
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _forget_descriptors({connection})
    with socket.socket(fileno=connection) as joined:
        serve_speaking(joined)


def _be(role: Callable[[], None]) -> NoReturn:
    """Play the role of a fork to its end. Nothing of the parent's goes on in it."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        role()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _forget_descriptors(kept: Collection[int]) -> None:
    """Close what was inherited, but for the standard streams.

    Each number stays taken, by /dev/null: the inherited objects that own the numbers still close
    them some day, which must not hit a descriptor opened since.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for entry in os.listdir("/proc/self/fd"):
        number = int(entry)
        if number > 2 and number not in kept and number != nothing:
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
