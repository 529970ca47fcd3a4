"""Workers as threads: every worker runs, replacements get their number, the end is reported."""

import logging
import queue
import threading

import pytest

from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.local.threads import ThreadLauncher

PROGRAM = WorkerProgram("job", ("127.0.0.1", 1), b"secret", b"plan", 4)
WAIT_S = 120.0


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


def test_each_worker_runs_the_program_on_loopback() -> None:
    calls: queue.Queue[tuple[WorkerProgram, Incarnation, str]] = queue.Queue()
    launcher = ThreadLauncher(workers=3, entry=lambda *call: calls.put(call))
    launcher.start(PROGRAM, unexpected)
    seen = sorted((calls.get(timeout=WAIT_S) for _ in range(3)), key=lambda call: call[1].worker)
    launcher.stop(WAIT_S)
    assert seen == [(PROGRAM, Incarnation(worker, 0), "127.0.0.1") for worker in range(3)]
    assert launcher.coordinator_host == "127.0.0.1"


def test_start_returns_while_workers_run_and_stop_waits_for_them() -> None:
    release = threading.Event()
    ended: list[int] = []

    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        release.wait(WAIT_S)
        ended.append(incarnation.worker)

    launcher = ThreadLauncher(entry=entry)
    launcher.start(PROGRAM, unexpected)
    assert ended == []
    release.set()
    launcher.stop(WAIT_S)
    assert ended == [0]


def test_a_worker_that_raises_is_reported_and_can_be_replaced() -> None:
    exits: queue.Queue[tuple[Incarnation, int]] = queue.Queue()
    numbers: list[int] = []

    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        numbers.append(incarnation.number)
        if incarnation.number == 0:
            raise RuntimeError("lost")

    launcher = ThreadLauncher(entry=entry)
    launcher.start(PROGRAM, unexpected, lambda *report: exits.put(report))
    assert exits.get(timeout=WAIT_S) == (Incarnation(0, 0), 1)
    launcher.replace(0, 5)
    assert exits.get(timeout=WAIT_S) == (Incarnation(0, 5), 0)
    launcher.stop(WAIT_S)
    assert numbers == [0, 5]


def test_nothing_starts_after_stop() -> None:
    calls: list[Incarnation] = []
    launcher = ThreadLauncher(entry=lambda program, incarnation, host: calls.append(incarnation))
    launcher.start(PROGRAM, unexpected)
    launcher.stop(WAIT_S)
    launcher.replace(0, 1)
    launcher.stop(WAIT_S)
    assert calls == [Incarnation(0, 0)]


def test_a_thread_that_ignores_the_stop_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()

    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        release.wait(WAIT_S)

    launcher = ThreadLauncher(entry=entry)
    launcher.start(PROGRAM, unexpected)
    with caplog.at_level(logging.WARNING):
        launcher.stop(0.01)
    assert "headrace-worker-0.0" in caplog.text
    release.set()
    launcher.stop(WAIT_S)
