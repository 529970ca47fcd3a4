"""The launcher that a job gets. Spark's: tests/spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.contract.options import RunOptions
from headrace.engine.drivers import worker_process as worker_main
from headrace.engine.local.processes import ProcessLauncher
from headrace.engine.local.threads import ThreadLauncher
from headrace.engine.session.launchers import make_launcher, worker


def test_a_runner_has_a_launcher() -> None:
    threads = make_launcher("job", RunOptions(runner="threads"), slots=4)
    processes = make_launcher("job", RunOptions(runner="processes"), slots=4)
    assert isinstance(threads, ThreadLauncher)
    assert isinstance(processes, ProcessLauncher)
    assert (threads.workers, processes.workers) == (1, 4)


def test_here_the_workers_of_a_rescaled_job_start_beside_the_old_ones() -> None:
    for runner, workers in (("processes", 3), ("threads", 1)):
        before = make_launcher("job", RunOptions(runner=runner), slots=2)  # type: ignore[arg-type]  # a runner's name
        successor = before.successor(3)
        assert successor is not None
        assert successor is not before
        assert successor.workers == workers
        assert before.has_room_beside(successor.workers)


def test_its_entry_runs_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[object, ...]] = []
    monkeypatch.setattr(worker_main, "run_worker", lambda *arguments: ran.append(arguments))
    program = WorkerProgram("job", ("localhost", 1), b"", b"", slots=1)
    worker(program, Incarnation(0, 1), "localhost")
    assert ran == [(program, Incarnation(0, 1), "localhost")]


def test_a_driver_does_not_import_a_worker() -> None:
    program = (
        "import sys, headrace.engine.session.launchers;"
        " assert 'headrace.engine.drivers.worker_process' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
