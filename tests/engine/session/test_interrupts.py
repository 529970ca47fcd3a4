"""Interrupts while a program waits for its job, with real signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow.dataset import dataset

import headrace as hr
from headrace.engine.contract.errors import JobFailed
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.coordinator.rules import Phase
from headrace.engine.session.handle import JobHandle
from headrace.engine.session.interrupts import plain_interrupts

from .test_handle import DEADLINE_S, RecordingSession, unplannable

STOPPED = JobResult("orders", outcome="stopped", last_checkpoint=7)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Slow(RecordingSession):
    """Does not end by the orders that are named; each wait is interrupted that may be."""

    def __init__(self, result: JobResult | None = STOPPED, *, deaf: str = "", waits: int = 1):
        super().__init__(result)
        self._deaf, self._waits = deaf, waits

    def stop(self) -> None:
        super().stop()
        if self._deaf == "stop":
            self.ended.clear()

    def wait(self, timeout_s: float | None) -> JobResult:
        if self._waits:
            self._waits -= 1
            threading.Thread(target=interrupt).start()
            assert not self.ended.wait(DEADLINE_S)
        return super().wait(timeout_s)


class Failing(Slow):
    def wait(self, timeout_s: float | None) -> JobResult:
        super().wait(timeout_s)
        raise JobFailed("the disk is full")


def handle_of(session: RecordingSession, *, durable: bool = True) -> JobHandle:
    return JobHandle("orders", session, collected={}, rescaling=unplannable, durable=durable)


def told(session: Slow, capfd: pytest.CaptureFixture[str], *, durable: bool = True) -> list[str]:
    with pytest.raises(KeyboardInterrupt):
        handle_of(session, durable=durable).wait()
    return capfd.readouterr().err.splitlines()


def test_an_interrupt_stops_the_job_with_a_last_checkpoint(
    capfd: pytest.CaptureFixture[str],
) -> None:
    session = Slow()
    asked, ended = told(session, capfd)
    assert asked.startswith("headrace: interrupted: job 'orders' takes a last checkpoint, then")
    assert ended == "headrace: job 'orders' has stopped; the next run goes on from chk-7"
    assert session.calls == ["stop"]


def test_a_second_interrupt_cancels(capfd: pytest.CaptureFixture[str]) -> None:
    session = Slow(JobResult("orders", outcome="stopped"), deaf="stop", waits=2)
    assert told(session, capfd)[1:] == [
        "headrace: interrupted: job 'orders' stops at once",
        "headrace: job 'orders' has stopped, and no checkpoint of this run is complete",
    ]
    assert session.calls == ["stop", "cancel"]


def test_without_checkpoints_the_job_stops_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    session = Slow(JobResult("orders", outcome="stopped"))
    assert told(session, capfd, durable=False) == [
        "headrace: interrupted: job 'orders' keeps no checkpoints, so it stops at once"
    ]
    assert session.calls == ["cancel"]


def test_a_job_that_was_to_stop_anyway_is_cancelled(capfd: pytest.CaptureFixture[str]) -> None:
    session = Slow(deaf="stop")
    handle = handle_of(session)
    handle.stop()
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    assert session.calls == ["stop", "cancel"]


def test_a_failure_on_the_way_to_the_end_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert told(Failing(), capfd)[-1] == "headrace: the disk is full"


def sparks_handler(*_: Any) -> None:
    raise AssertionError("it would cancel Spark's jobs")


@contextmanager
def handling(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_sparks_handler_stands_back_for_the_wait_and_any_other_stays() -> None:
    with handling(sparks_handler):
        with plain_interrupts():
            assert signal.getsignal(signal.SIGINT) is sparks_handler
        sparks_handler.__module__ = "pyspark.core.context"
        with pytest.raises(KeyboardInterrupt), plain_interrupts():
            interrupt()
            threading.Event().wait(DEADLINE_S)
        assert signal.getsignal(signal.SIGINT) is sparks_handler


def test_an_interrupted_run_goes_on_where_it_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def job(rate: float | None) -> hr.Job:
        rows = hr.read.sequence(1_000, keys=3, rate=rate, name="numbers")
        counts = rows.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
        sink = counts.write.parquet(str(tmp_path / "out"), name="out")
        return hr.Job("counted", sink, parallelism=1, checkpoints=str(tmp_path / "ck"))

    # It would take a thousand seconds.
    handle = job(rate=1.0).start("threads")
    while handle.status().phase is not Phase.RUNNING:
        assert not threading.Event().wait(0.01)
    threading.Timer(0.05, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        handle.wait(DEADLINE_S)
    assert "has stopped; the next run goes on from chk-" in capfd.readouterr().err
    assert job(rate=None).run("threads").outcome == "finished"
    counts = dataset(str(tmp_path / "out")).to_table()["n"].to_pylist()
    assert sum(counts) == 1_000
