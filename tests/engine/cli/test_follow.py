from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.cli.follow import Interrupts, follow, listening, start
from headrace.engine.contract.errors import JobFailed, UserError
from headrace.engine.contract.options import RunOptions
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.coordinator.coordinator_events import Notice, NoticeKind
from headrace.engine.drivers.status import Status
from headrace.engine.observation.observed import Observation
from headrace.engine.session.handle import JobHandle
from headrace.engine.session.job import Job

from .looks import COMPLETE, FAILED, JOB, observed, status_of


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None]] = []
        self.closed = False

    def event(self, event: str, text: str | None, **fields: Any) -> None:
        self.events.append((event, text))

    def look(self, observation: Observation, now_ns: int) -> None:
        assert not self.closed

    def close(self) -> None:
        self.closed = True


class Running:
    """A job that goes through a list of moments, and then ends."""

    def __init__(self, *moments: Callable[[], None], failure: str | None = None) -> None:
        self._moments = list(moments)
        self._failure = failure
        self.asked: list[str] = []
        self.notices: tuple[Notice, ...] = (COMPLETE, FAILED)

    def wait(self, timeout_s: float | None = None) -> JobResult:
        if self._moments:
            self._moments.pop(0)()
            raise TimeoutError
        if self._failure:
            raise JobFailed(self._failure)
        return JobResult("job")

    def status(self) -> Status:
        return status_of(notices=self.notices)

    def observe(self) -> Observation:
        return observed(notices=self.notices)

    def stop(self) -> None:
        self.asked.append("stop")

    def cancel(self) -> None:
        self.asked.append("cancel")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def nothing() -> None:
    pass


def followed(job: Running, interrupts: Interrupts, **options: Any) -> Told:
    told = Told()
    # A stand-in for the handle: follow asks for these four methods.
    follow(job, told, interrupts, **{"durable": True} | options)  # type: ignore[arg-type]
    return told


def test_each_notice_is_told_once_and_checkpoints_without_a_line() -> None:
    with listening() as interrupts:
        told = followed(Running(nothing, nothing), interrupts)
    assert told.events == [
        ("checkpoint", None),
        ("checkpoint_failed", "checkpoint failed: chk-8 was given up: disk full"),
    ]
    assert told.closed


@pytest.mark.parametrize("kind", NoticeKind)
def test_every_kind_of_notice_is_told(kind: NoticeKind) -> None:
    job = Running(nothing)
    job.notices = (Notice(kind, "so it is"),)
    with listening() as interrupts:
        ((event, text),) = followed(job, interrupts).events
    assert event == kind.value
    assert text is not None and text.endswith("so it is")


def test_the_first_interrupt_stops_with_a_checkpoint_and_the_second_at_once() -> None:
    job = Running(interrupt, nothing, interrupt)
    with listening() as interrupts:
        told = followed(job, interrupts)
    assert job.asked == ["stop", "cancel"]
    assert told.events[2:] == [
        (
            "stopping",
            "interrupted: taking a final checkpoint, then stopping; Ctrl-C again stops at once",
        ),
        ("cancelling", "stopping at once"),
    ]
    assert interrupts.exit_code == 130


def test_without_a_checkpoint_directory_no_checkpoint_is_promised() -> None:
    with listening() as interrupts:
        told = followed(Running(interrupt), interrupts, durable=False)
    assert told.events[2][1] == "interrupted: stopping at once"


def test_after_a_termination_the_last_checkpoint_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.engine.cli.follow._PATIENCE_S", 0.0)
    job = Running(lambda: os.kill(os.getpid(), signal.SIGTERM), nothing)
    with listening() as interrupts:
        followed(job, interrupts)
    assert job.asked == ["stop", "cancel"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "nothing is left to end"


def test_a_termination_is_an_interrupt_with_its_own_code() -> None:
    job = Running(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with listening() as interrupts:
        followed(job, interrupts)
    assert job.asked == ["stop"]
    assert interrupts.exit_code == 143


def test_a_third_interrupt_does_not_ask_any_more() -> None:
    with pytest.raises(KeyboardInterrupt), listening() as interrupts:
        followed(Running(interrupt, interrupt, interrupt), interrupts)


def test_a_failure_is_passed_on_after_the_last_notices() -> None:
    told = Told()
    with listening() as interrupts, pytest.raises(JobFailed, match="broken"):
        follow(Running(failure="broken"), told, interrupts, durable=True)  # type: ignore[arg-type]
    assert [event for event, _ in told.events] == ["checkpoint", "checkpoint_failed"]
    assert told.closed


def test_every_look_is_shown_to_the_watch() -> None:
    seen: list[Status] = []
    with listening() as interrupts:
        followed(Running(nothing, nothing, nothing), interrupts, watch=seen.append)
    assert len(seen) == 3


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with listening():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_nothing_is_counted() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def run() -> None:
        with listening():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_job_is_started_outside_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def start_with(self: Job, options: RunOptions) -> JobHandle:
        threads.append(threading.current_thread())
        raise UserError("wrong")

    monkeypatch.setattr(Job, "start_with", start_with)
    with pytest.raises(UserError, match="wrong"):
        start(JOB, JOB.run_options("threads"))
    assert threads != [threading.main_thread()]
    assert len(threads) == 1
