"""Which launcher a job gets, and who is told when a worker's process ends. Spark's: tests/spark."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.contract.launcher import Incarnation
from headrace.engine.contract.options import RunOptions
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.local.processes import ProcessLauncher
from headrace.engine.local.threads import ThreadLauncher
from headrace.engine.session.launchers import make_launcher, take_place


def test_a_runner_has_a_launcher() -> None:
    threads = make_launcher("job", RunOptions(runner="threads"), slots=4)
    processes = make_launcher("job", RunOptions(runner="processes"), slots=4)
    assert isinstance(threads.launcher, ThreadLauncher)
    assert isinstance(processes.launcher, ProcessLauncher)


def test_here_the_workers_of_a_rescaled_job_start_beside_the_old_ones() -> None:
    options = RunOptions(runner="processes")
    before = make_launcher("job", options, slots=2).launcher
    made = take_place("job", options, 3, before)
    assert made is not None
    assert made.launcher is not before
    assert (made.launcher.workers, made.has_room) == (3, True)


@pytest.mark.parametrize(
    ("code", "reason"), [(-9, "its process was killed by signal 9"), (3, "exit code 3")]
)
def test_who_listens_is_told_how_a_process_ended(
    code: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        "headrace.engine.local.processes.ProcessLauncher", lambda **kwargs: made.update(kwargs)
    )
    exits = make_launcher("job", RunOptions(runner="processes"), slots=3).exits
    heard: list[d.CoordinatorEvent] = []
    exits.append(heard.append)
    made["on_exit"](Incarnation(2, 5), code)
    assert made["workers"] == 3
    assert heard == [d.WorkerExited(2, 5, reason)]
