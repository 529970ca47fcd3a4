"""The handle: delegates to the session, replaces it in a rescale, adds what was collected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from headrace.engine.api.errors import HeadraceError, UserError
from headrace.engine.api.handle import JobHandle, JobResult, Session
from headrace.engine.coordination.driver import Status
from headrace.engine.coordination.rules import Phase

DEADLINE_S = 10.0
STATUS = Status(Phase.RUNNING, 1, 0, {}, (), (), 3)


class RecordingSession:
    """Notes each call; ends when it is told to stop."""

    def __init__(self, result: JobResult | None = None) -> None:
        self.calls: list[object] = []
        self.ended = threading.Event()
        self.waited = threading.Event()
        self._result = result or JobResult("orders", checkpoints=3, last_checkpoint=7)

    def checkpoint(self) -> int:
        self.calls.append("checkpoint")
        return 7

    def stop(self) -> None:
        self.calls.append("stop")
        self.ended.set()

    def cancel(self) -> None:
        self.calls.append("cancel")
        self.ended.set()

    def wait(self, timeout_s: float | None) -> JobResult:
        self.waited.set()
        if not self.ended.wait(DEADLINE_S if timeout_s is None else timeout_s):
            raise TimeoutError
        return self._result

    def status(self) -> Status:
        return STATUS

    def metrics(self) -> Mapping[str, float]:
        return {"headrace_restarts_total": 1.0}


def unplannable(parallelism: int) -> Callable[[int], Session]:
    raise UserError(f"no plan for {parallelism}")


def test_every_call_reaches_the_session() -> None:
    session = RecordingSession()
    handle = JobHandle("orders", session, collected={}, rescaling=unplannable)
    assert (handle.name, handle.checkpoint()) == ("orders", 7)
    handle.stop()
    handle.cancel()
    assert handle.status() is STATUS
    assert handle.metrics() == {"headrace_restarts_total": 1.0}
    assert session.calls == ["checkpoint", "stop", "cancel"]


def test_waiting_adds_what_the_collect_sinks_hold() -> None:
    session = RecordingSession()
    table = pa.table({"a": [1]})
    handle = JobHandle("orders", session, collected={"all": lambda: table}, rescaling=unplannable)
    handle.stop()
    assert handle.wait() == JobResult(
        "orders", checkpoints=3, last_checkpoint=7, collected={"all": table}
    )


def test_waiting_gives_up_in_time() -> None:
    handle = JobHandle("orders", RecordingSession(), collected={}, rescaling=unplannable)
    with pytest.raises(TimeoutError):
        handle.wait(0)


def test_a_rescale_goes_on_from_the_last_checkpoint_and_waiting_goes_on_with_it() -> None:
    first = RecordingSession(JobResult("orders", 10, checkpoints=3, restarts=1, last_checkpoint=7))
    second = RecordingSession(JobResult("orders", 5, checkpoints=2, last_checkpoint=9))
    started: list[tuple[int, int]] = []

    def rescaling(parallelism: int) -> Callable[[int], Session]:
        def launch(checkpoint: int) -> Session:
            started.append((parallelism, checkpoint))
            return second

        return launch

    handle = JobHandle("orders", first, collected={}, rescaling=rescaling)
    results: list[JobResult] = []
    waiter = threading.Thread(target=lambda: results.append(handle.wait()))
    waiter.start()
    assert first.waited.wait(DEADLINE_S)
    handle.rescale(4)
    assert second.waited.wait(DEADLINE_S)
    assert waiter.is_alive()
    handle.stop()
    waiter.join(DEADLINE_S)
    assert started == [(4, 7)]
    assert results == [JobResult("orders", 15, checkpoints=5, restarts=1, last_checkpoint=9)]


def test_a_rescale_that_has_no_plan_stops_nothing() -> None:
    session = RecordingSession()
    handle = JobHandle("orders", session, collected={}, rescaling=unplannable)
    with pytest.raises(UserError, match="no plan for 4"):
        handle.rescale(4)
    with pytest.raises(UserError) as caught:
        handle.rescale(0)
    assert str(caught.value) == "rescale: parallelism=0 is not a whole number from 1 to 32768"
    assert session.calls == []


def test_a_rescale_without_a_checkpoint_to_go_on_from_says_so() -> None:
    session = RecordingSession(JobResult("orders"))
    handle = JobHandle("orders", session, collected={}, rescaling=lambda _: lambda _: session)
    with pytest.raises(HeadraceError) as caught:
        handle.rescale(4)
    assert str(caught.value) == "job 'orders' ended without a checkpoint to go on from"
