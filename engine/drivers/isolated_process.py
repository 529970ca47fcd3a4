"""The process of an isolated operator as its subtask sees it; where no companion can fork one, a
fresh Python: `python -P -m headrace.engine.drivers.isolated_process`.

Workers in threads have no companion: the process is the user's, has threads, and cannot be forked.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys

from ..contract.operators import OperatorContext
from ..operators.isolated import serve
from .parent import die_with_parent
from .user_output import redirected, speaking

#: An exit code, negative for a signal.
CODE = struct.Struct("=i")


class IsolatedProcess:
    """One process, forked by a companion.

    Attributes:
        connection: to the process; the process ends when it is closed.
    """

    def __init__(self, connection: socket.socket, code: int) -> None:
        self.connection = connection
        self._code = code

    def ended(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None if it does not end or nobody knows."""
        if not select.select([self._code], [], [], timeout_s)[0]:
            return None
        told = os.read(self._code, CODE.size)
        return int(CODE.unpack(told)[0]) if len(told) == CODE.size else None

    def close(self) -> None:
        """Give the descriptors back."""
        self.connection.close()
        os.close(self._code)


class SpawnedProcess:
    """One process, a fresh Python."""

    def __init__(self) -> None:
        """Start it. Raises: OSError."""
        self.connection, theirs = socket.socketpair()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.engine.drivers.isolated_process"],
                stdin=theirs.fileno(),
                env=os.environ | {"PYTHONPATH": path},
                process_group=0,
            )

    def ended(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None if it does not end."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


def serve_speaking(connection: socket.socket) -> None:
    """Be the process of an isolated operator. What it prints goes to standard error: standard
    output belongs to the command, which may print JSON there.
    """
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    name = "isolated process"

    def named(context: OperatorContext) -> None:
        nonlocal name
        name = f"{context.operator}/{context.index}"

    with redirected(), speaking(lambda _: name):
        serve(connection, named)


def main() -> None:
    """Serve the process that started this one."""
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as joined:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        serve_speaking(joined)
    sys.stderr.flush()
    # The end of an interpreter takes half a second, and there is nothing to put in order.
    os._exit(0)


if __name__ == "__main__":
    main()
