"""The process from which workers are forked: `python -P -m headrace.engine.local.template`, started
by `forks`.

The template has imported everything that a worker imports, which takes a good second; a fork is a
worker some milliseconds later, and shares that memory. So the replacement of a dead worker, and the
workers of a rescale, start at once. Spark's daemon does the same.

Standard input is a socket for requests and replies. The template never runs the program. It must
have no thread of ours when it forks; the threads of Arrow's allocator and of NumPy's library know
about forks. Not `multiprocessing`'s fork server: that server runs the user's main module once more
in every fork, and serves one process as a whole.

    request  1 byte kind: F fork, with the worker's end of its pipe attached; K kill a fork's rest
             8 bytes number, big-endian, chosen by the other side
    reply    1 byte kind: E ended, R refused to fork
             8 bytes number
             4 bytes exit code, signed, or errno

The end of the socket means the parent's death.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import signal
import socket
import struct
import sys
import warnings

import numpy as np

from ..drivers.interpreter import freeze_loaded
from ..drivers.parent import die_with_parent
from ..drivers.warm import import_all
from .child import work

REQUEST = struct.Struct(">cQ")
REPLY = struct.Struct(">cQi")
FORK, KILL = b"F", b"K"
ENDED, REFUSED = b"E", b"R"


def main() -> None:
    """Serve; in a fork, be a worker."""
    faulthandler.enable()
    # From Python 3.12 on any thread is warned about; see above.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    die_with_parent(os.getppid())
    requests = socket.socket(fileno=_take_stdin())
    import_all()
    # The collector of a worker would also write to every page shared with the template.
    freeze_loaded()
    control = Template(requests).serve()
    # User code must draw different numbers in each worker; Python's own generator sees to that
    # itself.
    np.random.seed()
    work(control)


class Template:
    """The forks that live."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        #: {process id: number} of the forks not reaped yet, and its inverse.
        self._numbers: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def serve(self) -> int:
        """Serve until the other side is gone, which ends the process. Returns in a fork alone: the
        fork's end of its pipe.
        """
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with woken, wakes, selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is woken:
                        woken.recv(4096)
                        self._reap()
                        continue
                    control = self._request()
                    if control is not None:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        self._requests.close()
                        return control

    def _request(self) -> int | None:
        """Take one request. Not None in a fork."""
        data, descriptors, _, _ = socket.recv_fds(self._requests, REQUEST.size, 1)
        if not data:
            sys.exit(0)
        kind, number = REQUEST.unpack(data)
        if kind == KILL:
            self._kill(number)
            return None
        (control,) = descriptors
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(control)
            self._reply(REFUSED, number, error.errno or 0)
            return None
        # Parent and child both set the group, or the first to need the group could find it missing.
        with contextlib.suppress(OSError):
            os.setpgid(pid, 0)
        if not pid:
            die_with_parent(parent)
            return control
        os.close(control)
        self._numbers[pid], self._pids[number] = number, pid
        return None

    def _kill(self, number: int) -> None:
        """Kill a fork and its descendants; the number of a reaped fork may belong to another
        process by now.
        """
        pid = self._pids.get(number)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                number = self._numbers.pop(pid)
                del self._pids[number]
                self._reply(ENDED, number, os.waitstatus_to_exitcode(status))

    def _reply(self, kind: bytes, number: int, code: int) -> None:
        try:
            self._requests.sendall(REPLY.pack(kind, number, code))
        except OSError:
            sys.exit(0)


def _take_stdin() -> int:
    """Move the parent's socket away from descriptor 0, so that user code cannot read from it."""
    requests = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests


if __name__ == "__main__":
    main()
