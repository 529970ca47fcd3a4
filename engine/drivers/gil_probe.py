"""Finds calls that keep the GIL: a thread that sleeps for a moment, and cannot go on on time.

A late thread alone says little, since a busy machine makes threads late as well. A thread that
waits for the GIL asks for it again and again, and gives up its processor each time; one that waits
for a processor, or is stopped, does not. Of the calls under way those are suspected whose threads
do not ask for the GIL themselves.

Source: `thread_states.py`, by which a companion tells the same of another process.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import Counter

from ..contract.execution import SubtaskId
from .call_board import CallBoard, CallUnderWay
from .thread_states import ThreadLook, asks_for_gil, look_at, waits_for_gil

_EVERY_S = 0.05
#: While no operator is called, nobody keeps the GIL.
_IDLE_S = 0.2
#: A wait for the GIL as short as this does no harm.
_LATE_S = 0.1


class GilProbe:
    """Measures in a thread of its own, from `start` to `stop`."""

    def __init__(self, calls: CallBoard) -> None:
        self._calls = calls
        self._held_ns: Counter[SubtaskId] = Counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gil-probe", daemon=True)
        #: The GIL was kept lately, so it is worth looking who keeps it.
        self._suspicious = False

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End soon."""
        self._stopped.set()

    def held_ns(self, subtask: SubtaskId) -> int:
        """How long calls of the subtask have kept the GIL from others, all in all."""
        return self._held_ns[subtask]

    def _run(self) -> None:
        while not self._stopped.is_set():
            busy = bool(self._calls.under_way())
            self._measure(_EVERY_S if busy else _IDLE_S)

    def _measure(self, sleep_s: float) -> None:
        before = self._looks() if self._suspicious else {}
        switches, began_s = _switches(), time.monotonic()
        self._stopped.wait(sleep_s)
        passed_s = time.monotonic() - began_s
        late_s = passed_s - sleep_s
        late = late_s >= _LATE_S
        if late and asks_for_gil(_switches() - switches, late_s):
            for call in self._suspects(before, passed_s):
                self._held_ns[SubtaskId(call.call.task, call.call.subtask)] += int(late_s * 1e9)
        self._suspicious = late

    def _suspects(
        self, before: dict[int, ThreadLook | None], passed_s: float
    ) -> list[CallUnderWay]:
        under_way = self._calls.under_way()
        if len(under_way) < 2:
            return under_way
        now = self._looks()
        return [
            call
            for call in under_way
            if before.get(call.thread) is not None
            and not waits_for_gil(before.get(call.thread), now.get(call.thread), passed_s)
        ]

    def _looks(self) -> dict[int, ThreadLook | None]:
        me = os.getpid()
        return {call.thread: look_at(me, call.thread) for call in self._calls.under_way()}


def _switches() -> int:
    """How often this thread has given up its processor."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
