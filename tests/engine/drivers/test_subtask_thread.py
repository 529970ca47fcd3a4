"""The thread of a subtask: opens, works one piece at a time, answers each, and ends."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.operators import (
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    Transaction,
)
from headrace.engine.drivers.subtask_thread import (
    Leaving,
    SubtaskOpened,
    SubtaskOpenFailed,
    SubtaskThread,
    ThreadEvent,
)
from headrace.engine.operators.chain import Chain
from headrace.engine.operators.work import (
    ChainTime,
    FinishWork,
    PollWork,
    PrecommitWork,
    ProcessWork,
    Work,
)
from headrace.engine.worker.worker_events import WorkEnded, WorkFailed

WAIT_S = 120.0
ME = SubtaskId(1, 0)
BATCH = pa.record_batch({"x": pa.array([1, 2, 3], pa.int64())})
States = dict[str, list[RestoredState]]


class Panic(BaseException):
    """As of an extension in Rust."""


class FakeChain:
    """Notes its calls and the thread they came in; raises `failure` where `fails_in` says."""

    def __init__(self, fails_in: str = "", failure: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self._fed: dict[str, pa.RecordBatch] = {}
        self.threads: set[str] = set()
        self.closed = threading.Event()
        self.fails_in = fails_in
        self.failure = failure or ValueError("no good")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        if call == self.fails_in:
            raise self.failure

    def open(self) -> None:
        self._note("open")

    def restore(self, states: States) -> None:
        self._note("restore")

    def process(self, parts: tuple[pa.RecordBatch, ...], port: int, now_ns: int) -> object:
        self._note("process")
        return (tuple((0, part, part.nbytes) for part in parts),)

    def time(self) -> ChainTime:
        return ChainTime(watermark_ns=42)

    def poll(self, rows_max: int, now_ns: int) -> object:
        self._note("poll")
        return (((0, BATCH, BATCH.nbytes),),), Polled([BATCH], SourceStatus.IDLE, 77)

    def finish(self) -> object:
        self._note("finish")
        return ()

    def take_rows_late(self) -> int:
        self._note("take_rows_late")
        return 2

    def take_rows_out(self) -> int:
        return 3

    def failed_batch(self, operator: str) -> pa.RecordBatch | None:
        return BATCH if operator == "kept" else None

    def take_failed(self) -> tuple[int, str]:
        return 1, "one"

    def precommit(self, checkpoint: int) -> object:
        self._note("precommit")
        return [("out", Transaction(f"t{checkpoint}", {}))]

    isolated: frozenset[int] = frozenset()
    run = Chain.run
    _run = Chain._run

    def _tell_call(self, operator: int | None) -> None:
        pass

    def close(self) -> None:
        self.closed.set()
        self._note("close")


class Running:
    """A subtask's thread and what it posts."""

    def __init__(self, chain: FakeChain, states: States | None = None) -> None:
        self.chain = chain
        self.posted: queue.Queue[ThreadEvent] = queue.Queue()
        self.thread = SubtaskThread(
            3, ME, lambda: cast(Chain, chain), lambda: states, self.posted.put, self._keep
        )
        self.thread.start()

    def _keep(self, operator: str, subtask: int, batch: pa.RecordBatch) -> str:
        return f"{operator}-{subtask}-{batch.num_rows}"

    def next(self) -> ThreadEvent:
        return self.posted.get(timeout=WAIT_S)

    def done(self, number: int, work: Work) -> ThreadEvent:
        self.thread.submit(number, work)
        return self.next()

    def end(self) -> None:
        self.thread.abandon()
        self.thread.join(WAIT_S)


@pytest.fixture
def running() -> Iterator[Running]:
    subject = Running(FakeChain())
    assert subject.next() == SubtaskOpened(3, ME)
    yield subject
    subject.end()


def test_a_chain_is_opened_and_restored_in_the_thread() -> None:
    state = RestoredState("s", StateKind.LIST, pa.table({"x": [1]}))
    subject = Running(FakeChain(), {"op": [state]})
    assert subject.next() == SubtaskOpened(3, ME)
    assert subject.chain.calls == ["open", "restore"]
    assert subject.chain.threads == {"subtask-t1.0"}
    assert subject.thread.chain is cast(Chain, subject.chain)
    subject.end()


def test_those_that_leave_are_waited_for_but_not_for_ever() -> None:
    idle, busy = Running(FakeChain()), Running(FakeChain())
    assert idle.next() == busy.next() == SubtaskOpened(3, ME)
    release = threading.Event()

    def user_code() -> None:
        release.wait(WAIT_S)

    stuck = SubtaskThread(3, ME, lambda: cast(Chain, FakeChain()), user_code, busy.posted.put)
    stuck.start()
    unborn = SubtaskThread(3, ME, lambda: cast(Chain, FakeChain()), user_code, busy.posted.put)
    leaving = Leaving()
    leaving.add([idle.thread, stuck, unborn])
    leaving.join(0.05)
    assert idle.chain.closed.is_set()
    assert stuck.is_alive
    release.set()
    leaving.join(WAIT_S)
    assert not stuck.is_alive
    busy.end()


def test_without_a_checkpoint_nothing_is_restored(running: Running) -> None:
    assert running.chain.calls == ["open"]


def test_work_is_answered_with_its_number_and_what_it_emitted(running: Running) -> None:
    answer = running.done(5, ProcessWork(0, (BATCH,), 3))
    assert isinstance(answer, WorkEnded)
    assert (answer.epoch, answer.subtask, answer.done.work) == (3, ME, 5)
    assert answer.done.rows_out == 3
    assert answer.done.rows_late == 2
    assert (answer.done.rows_failed, answer.done.dropped) == (1, "one")
    assert answer.done.elapsed_ns > 0
    assert answer.done.outputs[0][0][:2] == (0, BATCH)


def test_a_poll_brings_the_sources_status(running: Running) -> None:
    answer = running.done(1, PollWork(10))
    assert isinstance(answer, WorkEnded)
    assert (answer.done.status, answer.done.wait_ns) == (SourceStatus.IDLE, 77)


def test_a_pre_commit_brings_its_transactions(running: Running) -> None:
    answer = running.done(1, PrecommitWork(9))
    assert isinstance(answer, WorkEnded)
    assert answer.done.transactions == (("out", Transaction("t9", {})),)


def test_pieces_are_worked_on_in_order(running: Running) -> None:
    works: list[Work] = [FinishWork(), PollWork(1), PrecommitWork(1)]
    for number, work in enumerate(works):
        running.thread.submit(number, work)
    answers = [running.next() for _ in range(3)]
    assert [a.done.work for a in answers if isinstance(a, WorkEnded)] == [0, 1, 2]


def test_an_abandoned_thread_closes_its_chain_and_ends() -> None:
    subject = Running(FakeChain())
    subject.next()
    subject.end()
    assert subject.chain.calls == ["open", "close"]
    assert subject.posted.empty()


NO_EXCEPTIONS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("gone"), Panic("rust")]


@pytest.mark.parametrize("failure", NO_EXCEPTIONS)
def test_whatever_a_piece_of_work_raises_is_reported_and_the_thread_goes_on(
    failure: BaseException,
) -> None:
    subject = Running(FakeChain("process", failure))
    subject.next()
    answer = subject.done(1, ProcessWork(0, (BATCH,), 3))
    assert isinstance(answer, WorkFailed)
    assert answer.reason.startswith(type(failure).__name__)
    assert not answer.fatal
    assert isinstance(subject.done(2, FinishWork()), WorkEnded)
    subject.end()


def test_a_chain_whose_close_raises_ends_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    subject = Running(FakeChain("close", SystemExit(3)))
    assert subject.next() == SubtaskOpened(3, ME)
    subject.end()
    assert not subject.thread.is_alive
    assert "was not closed in order" in caplog.text


@pytest.mark.parametrize("failure", [ValueError("no good"), *NO_EXCEPTIONS])
@pytest.mark.parametrize("where", ["open", "restore"])
def test_a_chain_that_cannot_be_opened_is_closed_and_reported(
    where: str, failure: BaseException
) -> None:
    chain = FakeChain(where, failure)
    subject = Running(chain, {})
    event = subject.next()
    assert isinstance(event, SubtaskOpenFailed)
    assert event.error is chain.failure
    assert chain.closed.wait(WAIT_S)


def failed(failure: BaseException) -> WorkFailed:
    subject = Running(FakeChain("process", failure))
    subject.next()
    answer = subject.done(1, ProcessWork(0, (BATCH,), 3))
    subject.end()
    assert isinstance(answer, WorkFailed)
    return answer


def test_the_users_own_error_brings_the_users_traceback() -> None:
    answer = failed(UserCodeError("score", "ValueError: no", "Traceback of the user"))
    assert "score" in answer.reason
    assert answer.details == "Traceback of the user"
    assert not answer.fatal


def test_a_known_error_needs_no_traceback() -> None:
    answer = failed(UserError("the file is gone"))
    assert (answer.reason, answer.details) == ("the file is gone", "")


def test_an_unknown_error_brings_our_traceback() -> None:
    answer = failed(KeyError("x"))
    assert answer.reason == "KeyError: 'x'"
    assert "test_subtask_thread.py" in answer.details


def test_a_thread_goes_on_after_a_piece_that_failed() -> None:
    subject = Running(FakeChain("process"))
    subject.next()
    assert isinstance(subject.done(1, ProcessWork(0, (BATCH,), 3)), WorkFailed)
    assert isinstance(subject.done(2, FinishWork()), WorkEnded)
    subject.end()


@pytest.mark.parametrize(
    ("operator", "reason"),
    [("kept", "no; the batch at hand goes to kept-0-3"), ("another", "no")],
)
def test_the_batch_of_a_failure_is_kept_and_named(operator: str, reason: str) -> None:
    subject = Running(FakeChain("process", UserCodeError(operator, "no", "", "job.py:3")))
    subject.next()
    answer = subject.done(1, ProcessWork(0, (BATCH,), 3))
    assert isinstance(answer, WorkFailed)
    assert answer.reason == f"operator {operator!r} (job.py:3): {reason}"
    subject.end()
