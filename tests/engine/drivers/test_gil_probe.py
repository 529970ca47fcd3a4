"""A probe in this process, and calls that keep the GIL or do not."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.engine.contract.execution import SubtaskId
from headrace.engine.drivers.call_board import CallBoard
from headrace.engine.drivers.gil_probe import GilProbe

DEADLINE_S = 60.0
HOLDER, OTHER = SubtaskId(1, 0), SubtaskId(1, 1)
#: PyDLL, unlike CDLL, keeps the GIL during the call.
KEEPS, LETS = ctypes.PyDLL(None), ctypes.CDLL(None)


class Calling:
    """Threads that make calls again and again, under the eyes of a probe."""

    def __init__(self) -> None:
        self.board = CallBoard()
        self.probe = GilProbe(self.board)
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def call(self, subtask: SubtaskId, function: Callable[[], object]) -> None:
        record = self.board.recorder(len(self._threads), subtask)

        def run() -> None:
            while not self._ended.is_set():
                record(0)
                function()
                record(None)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.probe.stop()
        self._ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def calling() -> Iterator[Calling]:
    subject = Calling()
    subject.probe.start()
    yield subject
    subject.end()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_call_that_keeps_the_gil_is_found_among_others(calling: Calling) -> None:
    calling.call(OTHER, lambda: LETS.usleep(20_000))
    calling.call(HOLDER, lambda: KEEPS.usleep(300_000))
    until(lambda: calling.probe.held_ns(HOLDER) > 1_500_000_000)
    assert calling.probe.held_ns(OTHER) < calling.probe.held_ns(HOLDER) / 2


def test_a_call_that_lets_others_run_is_not_suspected(calling: Calling) -> None:
    calling.call(OTHER, lambda: LETS.usleep(300_000))
    time_s = time.monotonic() + 0.7
    until(lambda: time.monotonic() > time_s)
    assert calling.probe.held_ns(OTHER) == 0
