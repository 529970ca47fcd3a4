"""The process of one worker: `python -P -m headrace.engine.local.child`, started by `processes`.

The parent writes one message into the standard input and keeps the pipe open. The message holds
the job's secret, which is why it comes this way and not as argument or environment. The pipe's
end is the parent's death: whatever the parent dies of, the kernel closes its descriptors, and the
child leaves at once. On Linux the kernel kills the child as well (PR_SET_PDEATHSIG), which also
holds when a third process has inherited the pipe or user code hogs the interpreter.

Message: length, 8 bytes big-endian, then cloudpickle of (entry, program, incarnation, host).
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import struct
import sys
import threading

from pyspark import cloudpickle

from ..runtime.launch import Entry, Incarnation, WorkerProgram

_LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1

#: Exit code of a child whose parent vanished; nobody is left to read it but a test.
ORPHANED = 75


def encode(entry: Entry, program: WorkerProgram, incarnation: Incarnation, host: str) -> bytes:
    """Return the message that makes a child run `entry(program, incarnation, host)`."""
    # pyspark ships cloudpickle without types.
    body: bytes = cloudpickle.dumps((entry, program, incarnation, host))  # type: ignore[no-untyped-call]
    return _LENGTH.pack(len(body)) + body


def main() -> None:
    """Read the message, run the worker, return when it ends; an exception makes the exit code 1."""
    faulthandler.enable()
    _die_with_parent()
    control = _take_stdin()
    length = _LENGTH.unpack(_read_exactly(control, _LENGTH.size))[0]
    # Pickle is right here: only the parent holds the other end of this pipe.
    entry, program, incarnation, host = pickle.loads(_read_exactly(control, length))
    threading.Thread(target=_leave_at_end_of, args=(control,), daemon=True).start()
    entry(program, incarnation, host)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_stdin() -> int:
    """Move the parent's pipe away from descriptor 0, so that user code cannot read from it."""
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return control


def _read_exactly(control: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(control, min(size, 1 << 20))
        if not part:
            os._exit(ORPHANED)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _leave_at_end_of(control: int) -> None:
    while os.read(control, 1):
        pass
    # Not sys.exit: nothing that user code left behind may delay it.
    os._exit(ORPHANED)


if __name__ == "__main__":
    main()
