"""The handle: delegates to the session, replaces it in a rescale, adds what was collected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.contract.errors import HeadraceError, UserError
from headrace.engine.contract.execution import ExecutionPlan
from headrace.engine.contract.options import RunOptions
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.coordinator.coordinator_events import Notice, NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.engine.observation.observer import Observer
from headrace.engine.session.handle import JobHandle, Session, Successor

DEADLINE_S = 120.0
PLAN = hr.Job(
    "orders", hr.read.sequence(1, name="numbers").write.blackhole(name="out"), parallelism=1
).plan()
STATUS = Status(Phase.RUNNING, 1, 0, {}, ((1, Notice(NoticeKind.RUNNING, "runs")),), (), 3)


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

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        self.calls.append(("savepoint", path, mode))
        return "/d/orders/sav-8"

    def stop(self) -> None:
        self.calls.append("stop")
        self.ended.set()

    def stop_with_savepoint(
        self, path: str | None, mode: CheckpointMode | None, *, drain: bool
    ) -> str:
        self.calls.append(("stop with savepoint", path, mode, drain))
        if path == "/refused":
            raise HeadraceError("the savepoint failed")
        self.ended.set()
        return "/d/orders/sav-9"

    def drain(self) -> None:
        self.calls.append("drain")
        self.ended.set()

    def suspend(self) -> None:
        self.calls.append("suspend")
        self.ended.set()

    def await_start(self) -> None:
        self.calls.append("await start")

    def successor(self, plan: ExecutionPlan, options: RunOptions) -> Successor:
        raise NotImplementedError

    def rescaled(self, text: str) -> None:
        self.calls.append(text.partition(" in ")[0])

    def cancel(self) -> None:
        self.calls.append("cancel")
        self.ended.set()

    def wait(self, timeout_s: float | None) -> JobResult:
        self.waited.set()
        if not self.ended.wait(DEADLINE_S if timeout_s is None else timeout_s):
            raise TimeoutError
        return self._result

    def settled(self) -> JobResult:
        assert self.ended.wait(DEADLINE_S)
        return self._result

    def status(self) -> Status:
        return STATUS

    def observer(self, deliveries: Mapping[str, str]) -> Observer:
        return Observer(PLAN)

    def metrics(self) -> Mapping[str, float]:
        return {"headrace_restarts_total": 1.0, "headrace_checkpoints_total": 3.0}


class Prepared:
    """What takes a session's place: notes what is done with it."""

    def __init__(self, launch: Callable[[int], Session], *, failure: str = "") -> None:
        self.calls: list[str] = []
        self._launch = launch
        self._failure = failure

    def await_workers(self) -> None:
        self.calls.append("await")
        if self._failure:
            raise HeadraceError(self._failure)

    def fetch_ahead(self) -> int:
        self.calls.append("fetch")
        return 1 << 30

    def begin(self, restore: int) -> Session:
        self.calls.append("begin")
        return self._launch(restore)

    def discard(self) -> None:
        self.calls.append("discard")


def unplannable(parallelism: int | None, running: Session) -> Successor:
    raise UserError(f"no plan for {parallelism}")


def test_every_call_reaches_the_session() -> None:
    session = RecordingSession()
    handle = JobHandle("orders", session, collected={}, rescaling=unplannable)
    assert (handle.name, handle.checkpoint()) == ("orders", 7)
    handle.stop()
    handle.cancel()
    assert handle.status() is STATUS
    metrics = handle.metrics()
    assert metrics["headrace_restarts_total"] == 1.0
    assert metrics["headrace_checkpoints_total"] == 3.0
    assert metrics["headrace_rescales_total"] == 0
    assert session.calls == ["checkpoint", "stop", "cancel"]


def test_waiting_adds_what_the_collect_sinks_hold() -> None:
    session = RecordingSession()
    table = pa.table({"a": [1]})
    handle = JobHandle("orders", session, collected={"all": lambda: table}, rescaling=unplannable)
    handle.stop()
    assert handle.wait() == JobResult(
        "orders", checkpoints=3, last_checkpoint=7, collected={"all": table}
    )


def test_a_handle_shows_how_its_job_stands() -> None:
    handle = JobHandle("orders", RecordingSession(), collected={}, rescaling=unplannable)
    first, sentence, *rows = repr(handle).splitlines()
    assert first == "job 'orders': running, attempt 1; no checkpoint yet"
    assert sentence == handle.observe().finding.sentence
    assert rows[1].startswith("numbers -> out ")
    shown: Any = handle
    assert "<b>orders</b> running, attempt 1" in shown._repr_html_()


def test_a_result_says_how_the_job_ended_and_how_many_rows_sinks_collected() -> None:
    table = pa.table({"a": [1, 2]})
    result = JobResult("orders", 2_300_000_000, 3, 1, 7, {"all": table}, "stopped", "/d/sav-7")
    assert repr(result) == (
        "<JobResult of 'orders': stopped in 2.3 s, 3 checkpoints (newest: chk-7), 1 restart,"
        " savepoint /d/sav-7; 2 rows in 'all'>"
    )
    plain = "<JobResult of 'orders': finished in 0 ms, 0 checkpoints>"
    assert repr(JobResult("orders")) == plain


def test_waiting_gives_up_in_time() -> None:
    handle = JobHandle("orders", RecordingSession(), collected={}, rescaling=unplannable)
    with pytest.raises(TimeoutError):
        handle.wait(0)


def test_a_rescale_goes_on_from_the_last_checkpoint_and_waiting_goes_on_with_it() -> None:
    first = RecordingSession(JobResult("orders", 10, checkpoints=3, restarts=1, last_checkpoint=7))
    second = RecordingSession(JobResult("orders", 5, checkpoints=2, last_checkpoint=9))
    started: list[tuple[int | None, int]] = []

    def rescaling(parallelism: int | None, running: Session) -> Successor:
        def launch(checkpoint: int) -> Session:
            started.append((parallelism, checkpoint))
            return second

        assert running is first
        return Prepared(launch)

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
    handle = JobHandle(
        "orders", session, collected={}, rescaling=lambda *_: Prepared(lambda _: session)
    )
    with pytest.raises(HeadraceError) as caught:
        handle.rescale(4)
    assert str(caught.value) == "job 'orders' ended without a checkpoint to go on from"


class Sessions:
    """Starts one session after the other; those at a parallelism in `broken` fail."""

    def __init__(self, *broken: int | None) -> None:
        self.broken = broken
        #: Why workers that are started ahead do not come.
        self.failure = ""
        self.prepared: list[Prepared] = []
        self.started: list[tuple[int | None, RecordingSession]] = []

    def rescaling(self, parallelism: int | None, running: Session) -> Successor:
        def launch(checkpoint: int) -> Session:
            if parallelism in self.broken:
                raise UserError("no room")
            session = RecordingSession(JobResult("orders", 1, checkpoints=3, last_checkpoint=9))
            self.started.append((parallelism, session))
            return session

        self.prepared.append(Prepared(launch, failure=self.failure))
        return self.prepared[-1]

    def handle(self) -> JobHandle:
        first = RecordingSession()
        self.started.append((2, first))
        rescaling = self.rescaling
        return JobHandle("orders", first, collected={}, rescaling=rescaling, parallelism=2)


def test_a_rescale_suspends_and_says_what_it_took() -> None:
    sessions = Sessions()
    handle = sessions.handle()
    rescaled = handle.rescale(4)
    assert (rescaled.parallelism, rescaled.checkpoint) == (4, 7)
    assert 0 <= rescaled.stop_ns <= rescaled.duration_ns
    assert 0 <= rescaled.standstill_ns <= rescaled.duration_ns
    assert [prepared.calls for prepared in sessions.prepared] == [["await", "fetch", "begin"]]
    (_, first), (_, second) = sessions.started
    assert first.calls == ["suspend"]
    assert second.calls == ["await start", "rescaled from 2 to 4"]


def test_a_rescale_to_the_present_parallelism_stops_nothing() -> None:
    sessions = Sessions()
    handle = sessions.handle()
    with pytest.raises(UserError, match="job 'orders' runs at parallelism 2 already"):
        handle.rescale(2)
    assert sessions.prepared == []


def test_totals_and_notices_go_on_after_a_rescale() -> None:
    handle = Sessions().handle()
    handle.rescale(4)
    handle.rescale(3)
    status = handle.status()
    assert [number for number, _ in status.notices] == [1, 2, 3]
    assert status.completed == 9
    metrics = handle.metrics()
    assert metrics["headrace_checkpoints_total"] == 9
    assert metrics["headrace_rescales_total"] == 2
    assert metrics["headrace_rescale_seconds"] >= 0


def test_a_job_that_cannot_start_at_the_new_parallelism_goes_on_at_the_old() -> None:
    sessions = Sessions(4)
    handle = sessions.handle()
    with pytest.raises(HeadraceError) as caught:
        handle.rescale(4)
    assert str(caught.value) == (
        "job 'orders' could not be rescaled to 4 (no room); it goes on as it was, from chk-7"
    )
    (_, first), (parallelism, second) = sessions.started
    assert parallelism == 2
    assert handle.metrics()["headrace_rescales_total"] == 0
    handle.stop()
    assert (first.calls, second.calls) == (["suspend"], ["await start", "stop"])


def test_a_job_whose_new_workers_do_not_come_never_stops() -> None:
    sessions = Sessions()
    sessions.failure = "workers 3 did not start in time"
    handle = sessions.handle()
    with pytest.raises(HeadraceError, match="workers 3 did not start"):
        handle.rescale(4)
    ((_, first),) = sessions.started
    assert first.calls == []
    assert [prepared.calls for prepared in sessions.prepared] == [["await", "discard"]]


def test_a_job_that_cannot_start_at_all_says_where_to_go_on() -> None:
    handle = Sessions(4, 2).handle()
    with pytest.raises(HeadraceError, match=r"it has stopped: start it with restore=7$"):
        handle.rescale(4)
    assert handle.wait(0).last_checkpoint == 7


def test_a_job_that_is_stopped_during_a_rescale_does_not_start_again() -> None:
    sessions = Sessions()
    handle = sessions.handle()
    handle.cancel()
    with pytest.raises(HeadraceError, match="was stopped, so it is not rescaled"):
        handle.rescale(4)
    assert len(sessions.started) == 1
    assert [prepared.calls for prepared in sessions.prepared] == [["await", "fetch", "discard"]]


def test_a_stop_that_comes_while_the_next_session_starts_reaches_it() -> None:
    class Starting(RecordingSession):
        def await_start(self) -> None:
            handle.stop()

    starting = Starting()
    handle = JobHandle(
        "orders",
        RecordingSession(),
        collected={},
        rescaling=lambda *_: Prepared(lambda _: starting),
    )
    handle.rescale(4)
    assert starting.calls[0] == "stop"


def test_waiting_during_a_rescale_keeps_to_its_time() -> None:
    launching, go_on = threading.Event(), threading.Event()
    second = RecordingSession()

    def launch(checkpoint: int) -> Session:
        launching.set()
        assert go_on.wait(DEADLINE_S)
        return second

    handle = JobHandle(
        "orders", RecordingSession(), collected={}, rescaling=lambda *_: Prepared(launch)
    )
    rescale = threading.Thread(target=lambda: handle.rescale(4))
    rescale.start()
    assert launching.wait(DEADLINE_S)
    with pytest.raises(TimeoutError, match="is being rescaled"):
        handle.wait(0.01)
    go_on.set()
    rescale.join(DEADLINE_S)


def test_a_stop_with_a_savepoint_ends_the_job_and_tells_where_it_is() -> None:
    session = RecordingSession()
    handle = JobHandle("orders", session, collected={}, rescaling=no_rescaling)
    assert handle.stop_with_savepoint("/d", "unaligned", drain=True) == "/d/orders/sav-9"
    mode = CheckpointMode.UNALIGNED
    assert session.calls == [("stop with savepoint", "/d", mode, True)]
    with pytest.raises(UserError, match="'sideways' is neither"):
        handle.stop_with_savepoint(mode="sideways")


def test_a_job_whose_last_savepoint_fails_can_be_rescaled_afterwards() -> None:
    """It goes on, so nobody has stopped it."""
    session = RecordingSession()
    handle = JobHandle("orders", session, collected={}, rescaling=no_rescaling)
    with pytest.raises(HeadraceError, match="the savepoint failed"):
        handle.stop_with_savepoint("/refused")
    with pytest.raises(LookupError, match="nowhere to go"):
        handle.rescale(2)


def no_rescaling(parallelism: int | None, running: object) -> Successor:
    raise LookupError("nowhere to go")


def test_observations_and_events_are_those_of_the_session() -> None:
    handle = JobHandle("orders", RecordingSession(), collected={}, rescaling=unplannable)
    observation = handle.observe()
    assert (observation.job, observation.phase) == ("orders", "running")
    assert [task.name for task in observation.tasks] == [task.name for task in PLAN.tasks]
    assert [event.text for event in handle.events()] == ["runs"]
    assert handle.events(since=1) == []
