"""The thread that keeps a board: looks, the end, and recordings that storage refuses."""

from __future__ import annotations

import logging
import threading

import pytest

from headrace.engine.contract.errors import JobFailed
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.drivers.status import Status
from headrace.engine.observation.observed import Event, Observation
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.engine.ui.board import Board
from headrace.engine.ui.durations import Durations
from headrace.engine.ui.keeper import Keeper
from headrace.engine.ui.recording import decode
from headrace.recovery.layout import history_path
from headrace.recovery.store import Content, StoreUncertain
from tests.engine.cli.looks import COMPLETE, status_of

from .made import FACTS, START_MS, look


class Watched:
    """A job of so many seconds, none of which is waited for."""

    name = "shop"

    def __init__(self, seconds: int, *, fails: bool = False) -> None:
        self._seconds = seconds
        self._fails = fails
        self._at = 0

    def wait(self, timeout_s: float | None = None) -> JobResult:
        self._at += 1
        if self._at <= self._seconds:
            raise TimeoutError
        if self._fails:
            raise JobFailed("it broke")
        return JobResult("shop")

    def observe(self) -> Observation:
        return look(self._at, phase="running" if self._at <= self._seconds else "ended")

    def events(self, since: int) -> list[Event]:
        kinds = ["checkpoint", "warning"]
        return [Event(n, START_MS, kinds[n % 2], "") for n in range(since + 1, self._at + 1)]

    def status(self) -> Status:
        return status_of(notices=(COMPLETE,))


def keep(job: Watched, store: MemoryStore | None) -> Board:
    """Keep a board until the job has ended."""
    board, ended = Board(FACTS), threading.Event()
    keeper = Keeper(job, board, Durations(), store, ended.set)
    keeper.start()
    assert ended.wait(30)
    keeper.close()
    return board


@pytest.mark.parametrize("fails", [False, True])
def test_a_board_is_kept_and_recorded_until_the_job_has_ended(fails: bool) -> None:
    store = MemoryStore()
    board = keep(Watched(5, fails=fails), store)
    assert board.has_ended
    assert len(board.points()) == 6, "the end is looked at, too"
    assert [event.number for event in board.events()] == [1, 3, 5]
    assert [each.checkpoint for each in board.detailed_checkpoints()] == [7]
    recording = decode(store.get(history_path("shop")))
    assert recording.look == board.look
    assert len(recording.points) == 6


class Blinking(Watched):
    """A job of which the third look breaks."""

    def observe(self) -> Observation:
        if self._at == 3:
            raise RuntimeError("a bug")
        return super().observe()


def test_a_look_that_breaks_leaves_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    board = keep(Blinking(5), None)
    assert [(p.at_ms - START_MS) // 1000 for p in board.points()] == [1, 2, 4, 5, 6]
    assert "a look at job 'shop' broke" in caplog.text


class Refusing(MemoryStore):
    """Storage that is out of reach."""

    def put(self, path: str, data: Content) -> None:
        raise StoreUncertain(path, "out of reach")


def test_storage_that_refuses_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    board = keep(Watched(3), Refusing())
    assert len(board.points()) == 4
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "history of job 'shop' is not recorded: shop/history: out of reach" in record.message
