"""The process of one worker, forked by `template.py`.

The parent writes one message into a pipe and keeps the pipe open. The message holds the job's
secret, and therefore comes neither as an argument nor in the environment. The end of the pipe means
the parent's death: the kernel closes the descriptors of a dead process, and the child leaves at
once. On Linux the kernel kills the child as well, see `die_with_parent`.

Message: length, 8 bytes big-endian, then cloudpickle of (entry, program, incarnation, host).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import struct
import sys
import threading
from typing import NoReturn

import cloudpickle

from ..contract.launcher import Entry, Incarnation, WorkerProgram
from ..drivers.parent import ORPHANED

_LENGTH = struct.Struct(">Q")
_PR_SET_NAME = 15


def encode(entry: Entry, program: WorkerProgram, incarnation: Incarnation, host: str) -> bytes:
    """Return the message that makes a child run `entry(program, incarnation, host)`."""
    body: bytes = cloudpickle.dumps((entry, program, incarnation, host))
    return _LENGTH.pack(len(body)) + body


def work(control: int) -> None:
    """Read the message from this pipe, run the worker, and end the process; an exception of the
    worker ends it as well.
    """
    length = _LENGTH.unpack(_read_exactly(control, _LENGTH.size))[0]
    # Pickle is right here: only the parent holds the other end of this pipe.
    entry, program, incarnation, host = pickle.loads(_read_exactly(control, length))
    threading.Thread(target=_leave_at_end_of, args=(control,), daemon=True).start()
    # Standard output is the results' alone, whatever user code, or a library in C, prints.
    with contextlib.suppress(OSError):  # there may be no standard error
        os.dup2(2, 1)
    _name(f"{program.job}.{incarnation.worker}")
    entry(program, incarnation, host)
    _leave()


def _name(name: str) -> None:
    """On Linux: be shown under this name by `top` and `ps`, which cut it to 15 bytes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[-15:])


def _read_exactly(control: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(control, min(size, 1 << 20))
        if not part:
            os._exit(ORPHANED)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _leave() -> NoReturn:
    """End the process in order, but without waiting for threads of user code that still run."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _leave_at_end_of(control: int) -> None:
    while os.read(control, 1):
        pass
    # Not sys.exit: leftovers of user code may not delay the end.
    os._exit(ORPHANED)
