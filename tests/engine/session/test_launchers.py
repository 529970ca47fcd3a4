"""Which launcher a job gets, and how the end of a worker is told. Spark's: tests/spark."""

from __future__ import annotations

import pytest

from headrace.engine.contract.launcher import Incarnation
from headrace.engine.contract.options import RunOptions
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.local.processes import ProcessLauncher
from headrace.engine.local.threads import ThreadLauncher
from headrace.engine.session.launchers import make_launcher, worker_exited


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


@pytest.mark.parametrize(
    ("code", "reason"), [(-9, "its process was killed by signal 9"), (3, "exit code 3")]
)
def test_the_coordinator_is_told_how_a_process_ended(code: int, reason: str) -> None:
    assert worker_exited(Incarnation(2, 5), code) == d.WorkerExited(2, 5, reason)
