"""A process that ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

#: Exit code of a process whose parent vanished, for tests.
ORPHANED = 75


def die_with_parent(parent: int) -> None:
    """On Linux: be killed when the thread that forked this process ends.

    That holds as well when a third process has inherited the pipe, or user code hogs the
    interpreter. `parent` is that thread's process, which may have died already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(ORPHANED)
