"""A job that stands still is told of once, and slow or idle ones are not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.contract.execution import EdgePlan, ExecutionPlan, OperatorPlan, TaskPlan
from headrace.engine.contract.messages import Heartbeat, SubtaskNumbers
from headrace.engine.coordinator.coordinator_events import Notice
from headrace.engine.coordinator.standstill import Standstill

from .driven_coordinator import running

S = 1_000_000_000
SCHEMA = pa.schema([("x", pa.int64())])
PLAN = ExecutionPlan(
    "job",
    (
        TaskPlan(0, "numbers", (OperatorPlan("numbers"),), 1, (), (0,)),
        TaskPlan(1, "rounds", (OperatorPlan("rounds"),), 1, (0, 2), (1,)),
        TaskPlan(2, "again", (OperatorPlan("again"),), 1, (1,), (2,)),
    ),
    (
        EdgePlan(0, "a", 0, 1, 0, Rebalance(), SCHEMA),
        EdgePlan(1, "b", 1, 2, 0, Rebalance(), SCHEMA),
        EdgePlan(2, "c", 2, 1, 1, Rebalance(), SCHEMA, feedback=True),
    ),
    128,
)
TOLD = (
    "no record has moved for 30 s, while 3,000 bytes wait: rounds for room towards again, again for"
    " room towards rounds; stop the job with an unaligned savepoint, and start it from there with a"
    " larger network.window"
)


class Subject:
    """A job of three subtasks whose heartbeats come each second."""

    def __init__(self) -> None:
        self.machine = Standstill(PLAN)
        self.machine.begin(0)
        self.now_ns = 0
        self.busy_ns = [0, 0, 0]
        self.waited_ns = [0, 0, 0]
        self.rows = 0
        self.told: list[str] = []

    def beat(
        self,
        seconds: int,
        *,
        busy: tuple[int, ...] = (),
        stuck: tuple[int, ...] = (1, 2),
        silent: tuple[int, ...] = (),
        rows: int = 0,
    ) -> list[str]:
        """Let seconds pass: tasks are busy, or lack room. Return what users are told."""
        self.told = []
        for _ in range(seconds):
            self.now_ns += S
            self.rows += rows
            for task in range(3):
                self.busy_ns[task] += S * (task in busy)
                self.waited_ns[task] += S * (task in stuck)
            numbers = [self._numbers(task) for task in range(3) if task not in silent]
            self.told += [
                effect.text
                for effect in self.machine.heard(numbers, self.now_ns)
                if isinstance(effect, Notice)
            ]
        return self.told

    def _numbers(self, task: int) -> SubtaskNumbers:
        busy_ns, waited_ns = self.busy_ns[task], self.waited_ns[task]
        return SubtaskNumbers(task, 0, self.rows, self.rows, busy_ns, waited_ns, 0, 1_000, 0)


def test_a_job_that_stands_still_is_told_of_once() -> None:
    subject = Subject()
    assert subject.beat(5, rows=3) == []
    assert subject.beat(29) == []
    assert subject.beat(1) == [TOLD]
    assert subject.beat(100) == []


def test_it_is_told_that_the_job_goes_on_and_when_it_stands_still_again() -> None:
    subject = Subject()
    subject.beat(40)
    assert subject.beat(3, rows=1) == ["the job goes on, after 40 s without progress"]
    assert subject.beat(30) == [TOLD]


@pytest.mark.parametrize(
    "what",
    [
        {"busy": (0,)},
        {"stuck": ()},
        {"rows": 1},
        {"silent": (2,)},
    ],
    ids=["a long call", "nobody lacks room", "records move", "a worker is silent"],
)
def test_slow_and_idle_jobs_do_not_stand_still(what: dict[str, tuple[int, ...]]) -> None:
    subject = Subject()
    subject.beat(5, rows=1)
    assert subject.beat(100, **what) == []  # type: ignore[arg-type]  # the keywords of `beat`


def test_short_calls_without_records_do_not_hide_a_standstill() -> None:
    """As of a source that is asked in vain."""
    subject = Subject()
    subject.beat(1)
    for _ in range(40):
        subject.busy_ns[0] += S // 20
        if subject.beat(1):
            break
    assert subject.told == [TOLD]


def test_a_new_attempt_begins_anew() -> None:
    subject = Subject()
    subject.beat(40)
    subject.machine.begin(subject.now_ns)
    assert subject.beat(30) == []
    assert subject.beat(1) == [TOLD]


def test_a_coordinator_watches_the_heartbeats_of_its_attempt() -> None:
    subject = running()
    for second in range(35):
        subject.now_ns = second * S
        for worker in (0, 1):
            waited_ns = second * S
            numbers = [
                SubtaskNumbers(task, worker, 5, 5, 0, waited_ns * (task == 0), 0, 10, 0)
                for task in (0, 1)
            ]
            subject.said(worker, Heartbeat(subject.machine.epoch, numbers))
    told = [text for text in subject.notices if "no record has moved" in text]
    assert len(told) == 1
    assert "for 30 s, while 40 bytes wait: numbers for room towards out;" in told[0]
