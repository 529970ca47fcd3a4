"""How long the threads of worker processes wait for a processor, told by the kernel
(`/proc/PID/task/TID/schedstat`).

Looked at every 40 ms, so that it can be said of a checkpoint afterwards. A worker's owner thread is
its process's main thread. Another thread that waits may hold the GIL meanwhile, and then the owner
waits for it without showing it here: the longest wait of another thread bounds that. Where the
kernel does not tell, every wait is 0.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

_LOOK_S = 0.04


@dataclass(frozen=True, slots=True)
class Waited:
    """Of all workers the longest wait for a processor, of an owner thread and of any other;
    milliseconds.
    """

    owner_ms: float
    other_ms: float


class Waits:
    """Looks at these processes while it is entered."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = sorted(pids)
        self._times_ns: list[int] = []
        #: {(process, thread): nanoseconds waited so far}, for each time.
        self._looks: list[dict[tuple[int, int], int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def between(self, began_ns: int, ended_ns: int) -> Waited:
        """What was waited between two times of the wall clock, and up to 40 ms more at either
        end.
        """
        if not self._looks:
            return Waited(0.0, 0.0)
        last = len(self._looks) - 1
        before = self._looks[max(0, bisect_right(self._times_ns, began_ns) - 1)]
        after = self._looks[min(last, bisect_left(self._times_ns, ended_ns))]
        waited = [(p == t, ns - before.get((p, t), 0)) for (p, t), ns in after.items()]
        owner_ns = max((ns for is_owner, ns in waited if is_owner), default=0)
        other_ns = max((ns for is_owner, ns in waited if not is_owner), default=0)
        return Waited(round(owner_ns / 1e6, 1), round(other_ns / 1e6, 1))

    def _run(self) -> None:
        while True:
            self._times_ns.append(time.time_ns())
            self._looks.append({(p, t): ns for p in self._pids for t, ns in _queued_ns(p)})
            if self._stopped.wait(_LOOK_S):
                return


def _queued_ns(pid: int) -> list[tuple[int, int]]:
    """(thread, nanoseconds waited for a processor) of each thread of a process; none when it has
    ended.
    """
    found: list[tuple[int, int]] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                found.append((int(thread), int(file.read().split()[1])))
    return found
