"""One look for all who ask at about the same time."""

from __future__ import annotations

from dataclasses import replace

from headrace.engine.drivers.status import Status
from headrace.engine.observation.observer import Observer
from headrace.engine.observation.watcher import Watcher, events_of
from tests.engine.cli.looks import BUSY, COMPLETE, FAILED, PLAN, status_of


class Run:
    """Counts who asks."""

    def __init__(self) -> None:
        self.looks = self.observers = 0

    def observer(self) -> Observer:
        self.observers += 1
        return Observer(PLAN)

    def status(self) -> Status:
        self.looks += 1
        return status_of(BUSY)


def test_those_who_ask_at_the_same_time_share_a_look() -> None:
    run, now_ns = Run(), 0
    watcher = Watcher(clock=lambda: now_ns)
    first = watcher.look(run, run.observer, run.status)
    now_ns += 400_000_000
    assert watcher.look(run, run.observer, run.status) is first
    now_ns += 200_000_000
    assert watcher.look(run, run.observer, run.status) is not first
    assert (run.looks, run.observers) == (2, 1)


def test_another_run_is_looked_at_at_once() -> None:
    before, after = Run(), Run()
    watcher = Watcher()
    first = watcher.look(before, before.observer, before.status)
    second = watcher.look(after, after.observer, after.status)
    assert after.looks == 1
    assert first.started_ms == second.started_ms


def test_events_are_notices_after_a_number() -> None:
    status = status_of(notices=(COMPLETE, replace(FAILED, at_ms=5)))
    (event,) = events_of(status, 1)
    assert (event.number, event.at_ms, event.kind) == (2, 5, "checkpoint_failed")
    assert event.text == FAILED.text
