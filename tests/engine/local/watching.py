"""What tests of worker processes have in common: a program for nobody, and ways to wait for
processes to come and go.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headrace.engine.contract.launcher import WorkerProgram

PROGRAM = WorkerProgram("job", ("127.0.0.1", 1), b"open sesame", b"plan", 2)
WAIT_S = 120.0


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "condition not met in time"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """A zombie is dead: whoever should reap it may be this container's careless init."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
