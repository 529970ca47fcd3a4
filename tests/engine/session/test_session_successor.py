"""A job that takes another's place: its workers come while the other still runs, and go when it
does not begin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine.contract.errors import HeadraceError, UserError
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.coordinator_driver import CoordinatorDriver
from headrace.engine.session.session import RunningJob, start_job

WAIT_S = 120.0


def endless(name: str = "totals") -> hr.Job:
    numbers = hr.read.sequence(None, keys=5, name="numbers", rate=500)
    totals = numbers.key_by("key").aggregate(n=hr.count(), emit="final", name=name)
    return hr.Job("endless", totals.write.blackhole(name="out"), max_parallelism=8)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningJob]:
    job = endless()
    options = job.run_options("threads", parallelism=2, checkpoints=str(tmp_path))
    session = start_job(job.plan(2), options)
    session.await_start()
    yield session
    session.cancel()
    session.wait(WAIT_S)


def options_of(job: hr.Job, folder: Path) -> Any:
    return job.run_options("threads", parallelism=3, checkpoints=str(folder))


def workers() -> int:
    return sum(thread.name.startswith("headrace-worker-") for thread in threading.enumerate())


def test_its_workers_come_while_the_other_runs_and_it_goes_on_from_there(
    running: RunningJob, tmp_path: Path
) -> None:
    job = endless()
    successor = running.successor(job.plan(3), options_of(job, tmp_path))
    successor.await_workers()
    assert workers() == 2
    assert running.status().phase is Phase.RUNNING
    running.suspend()
    checkpoint = running.wait(WAIT_S).last_checkpoint
    session = successor.begin(checkpoint)
    session.await_start()
    assert session.status().phase is Phase.RUNNING
    # The phase is seen a moment before the notice of it.
    deadline_s = time.monotonic() + WAIT_S
    while not (notices := session.status().notices):
        assert time.monotonic() < deadline_s, session.status()
        time.sleep(0.01)
    assert f"from chk-{checkpoint}" in notices[0][1].text
    session.cancel()
    session.wait(WAIT_S)


def test_when_it_does_not_begin_its_workers_go(running: RunningJob, tmp_path: Path) -> None:
    job = endless()
    successor = running.successor(job.plan(3), options_of(job, tmp_path))
    successor.await_workers()
    successor.discard()
    assert workers() == 1
    assert running.status().phase is Phase.RUNNING
    assert running.checkpoint() > 0


def test_a_beginning_that_fails_leaves_the_checkpoint_and_no_worker(
    running: RunningJob, tmp_path: Path
) -> None:
    other = endless(name="renamed")
    successor = running.successor(other.plan(3), options_of(other, tmp_path))
    successor.await_workers()
    running.suspend()
    checkpoint = running.wait(WAIT_S).last_checkpoint
    with pytest.raises(UserError, match="totals"):
        successor.begin(checkpoint)
    assert workers() == 0
    again = endless()
    options = replace(options_of(again, tmp_path), restore=checkpoint)
    session = start_job(again.plan(3), options)
    session.await_start()
    session.cancel()
    session.wait(WAIT_S)


def test_workers_that_cannot_be_had_fail_the_wait(
    running: RunningJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = endless()
    successor = running.successor(job.plan(3), options_of(job, tmp_path))
    monkeypatch.setattr(CoordinatorDriver, "await_workers", lambda *_: "no more processes")
    with pytest.raises(HeadraceError, match="no more processes"):
        successor.await_workers()
    successor.discard()
