"""What Linux tells of threads: who runs, who waits for the GIL, who stands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from headrace.engine.drivers.thread_states import ThreadLook, has_moved, look_at, waits_for_gil

#: The main thread does as told; the other one says its number and holds the GIL, or does not.
PROGRAM = """
import ctypes, sys, threading, time
library = ctypes.PyDLL(None) if sys.argv[1] == "holds" else ctypes.CDLL(None)
def call():
    print(threading.get_native_id(), flush=True)
    library.usleep(20_000_000)
threading.Thread(target=call, daemon=True).start()
if sys.argv[2] == "beats":
    while True:
        time.sleep(0.05)
else:
    stuck = threading.Lock()
    stuck.acquire()
    stuck.acquire()
"""


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Process, and the thread in the call."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *request.param], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        thread = int(process.stdout.readline())
        time.sleep(0.3)
        yield process.pid, thread
        process.kill()


def looks(process: int, thread: int) -> tuple[ThreadLook | None, ThreadLook | None]:
    before = look_at(process, thread)
    time.sleep(1.0)
    return before, look_at(process, thread)


@pytest.mark.parametrize("started", [("holds", "beats")], indirect=True)
def test_beside_a_holder_of_the_gil_the_main_thread_asks_for_it(started: tuple[int, int]) -> None:
    process, thread = started
    owner = looks(process, process)
    assert has_moved(*owner)
    assert waits_for_gil(*owner, 1.0)
    assert not waits_for_gil(*looks(process, thread), 1.0)


@pytest.mark.parametrize("started", [("lets go", "beats")], indirect=True)
def test_a_main_thread_that_beats_moves_and_does_not_wait(started: tuple[int, int]) -> None:
    process, _ = started
    owner = looks(process, process)
    assert has_moved(*owner)
    assert not waits_for_gil(*owner, 1.0)


@pytest.mark.parametrize("started", [("lets go", "stuck")], indirect=True)
def test_a_main_thread_in_a_deadlock_does_not_move(started: tuple[int, int]) -> None:
    process, _ = started
    assert not has_moved(*looks(process, process))


@pytest.mark.parametrize("started", [("holds", "beats")], indirect=True)
def test_a_stopped_process_does_not_move(started: tuple[int, int]) -> None:
    process, _ = started
    before = look_at(process, process)
    time.sleep(0.1)
    os.kill(process, 19)
    while (now := look_at(process, process)) is not None and now.state != "T":
        time.sleep(0.01)
    assert before is not None and now is not None
    assert now.switches > before.switches
    assert not has_moved(before, now)


def test_nothing_is_said_of_threads_that_are_not_there() -> None:
    assert look_at(os.getpid(), 1) is None
    assert not has_moved(None, ThreadLook("R", 1))
    assert not has_moved(ThreadLook("R", 1), None)
    assert not waits_for_gil(None, ThreadLook("S", 1_000), 1.0)


def test_a_thread_that_computes_moves_though_it_is_never_switched() -> None:
    assert has_moved(ThreadLook("R", 5), ThreadLook("R", 5))
    assert not has_moved(ThreadLook("S", 5), ThreadLook("S", 5))
