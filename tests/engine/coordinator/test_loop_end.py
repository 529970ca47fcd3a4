"""The end of loops: two equal waves at rest, and what does not count as the end."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.contract.execution import EdgePlan, ExecutionPlan, OperatorPlan, TaskPlan
from headrace.engine.contract.messages import (
    Deployed,
    EndLoop,
    LoopProbed,
    ProbeLoop,
    Register,
    TaskFinished,
)
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.coordinator_events import CoordinatorEffect, SendMessage
from headrace.engine.coordinator.loop_end import LoopEnds, cycle_tasks
from headrace.engine.coordinator.rules import Phase
from headrace.engine.coordinator.workers import Workers

from .driven_coordinator import RULES, Driven, deployed

MS = 1_000_000
SCHEMA = pa.schema([("x", pa.int64())])
OPERATOR = (OperatorPlan("never run"),)


def plan_of(*edges: tuple[int, int], again: tuple[tuple[int, int], ...] = ()) -> ExecutionPlan:
    """Tasks of two subtasks each; `again` are back-edges (from, head)."""
    all_edges = tuple(
        EdgePlan(i, str(i), *pair, 0, Rebalance(), SCHEMA, feedback=pair in again)
        for i, pair in enumerate((*edges, *again))
    )
    tasks = tuple(
        TaskPlan(
            task,
            str(task),
            OPERATOR,
            2,
            tuple(e.index for e in all_edges if e.consumer == task),
            tuple(e.index for e in all_edges if e.producer == task),
        )
        for task in range(1 + max(max(pair) for pair in edges))
    )
    return ExecutionPlan("job", tasks, all_edges, 128)


#: source 0 -> head 1 -> body 2 -> again 3 -> head, body -> sink 4
ONE = plan_of((0, 1), (1, 2), (2, 3), (2, 4), again=((3, 1),))
#: source 0 -> outer 1 -> inner 2 -> its again 3, inner -> out 4 -> outer, out -> sink 5
NESTED = plan_of((0, 1), (1, 2), (2, 3), (2, 4), (4, 5), again=((3, 2), (4, 1)))
FED = {(0, 0), (0, 1)}


class Subject:
    """Two workers, each with one subtask of every task."""

    def __init__(self, plan: ExecutionPlan = ONE) -> None:
        self.workers = Workers([[0], [1]], RULES)
        for worker in (0, 1):
            self.workers.register(worker, Register(worker, 0, "host", 1, 1), 0)
        self.ends = LoopEnds(plan, self.workers)
        self.ends.begin(1)
        self.finished = set(FED)
        self.now_ns = 0

    def advance(self) -> list[str]:
        return told(self.ends.advance(self.finished, self.now_ns))

    def answer(self, wave: int, *counts: tuple[int, int] | None) -> list[str]:
        """The workers answer in turn; then time passes for the machine."""
        told_: list[str] = []
        for worker, one in enumerate(counts):
            answer = LoopProbed(1, wave, one is not None, *(one or (0, 0)))
            told_ += told(self.ends.probed(worker, answer, self.now_ns))
        return told_ + self.advance()


def told(effects: list[CoordinatorEffect]) -> list[str]:
    """The message to worker 0; worker 1 is sent the same."""
    messages: dict[int, list[str]] = {0: [], 1: []}
    for effect in effects:
        assert isinstance(effect, SendMessage), effect
        match effect.message:
            case ProbeLoop(_, wave, edges):
                messages[effect.connection].append(f"wave {wave} {edges}")
            case EndLoop(_, task):
                messages[effect.connection].append(f"end {task}")
    assert messages[0] == messages[1]
    return messages[0]


# --- cycles ---------------------------------------------------------------------------------------


def test_the_cycle_leaves_out_what_only_enters_or_leaves() -> None:
    assert cycle_tasks(ONE, 1) == {1, 2, 3}


def test_a_cycle_contains_the_loops_inside_and_not_those_around() -> None:
    assert cycle_tasks(NESTED, 1) == {1, 2, 3, 4}
    assert cycle_tasks(NESTED, 2) == {2, 3}


# --- waves ----------------------------------------------------------------------------------------


def test_nobody_is_asked_while_something_before_the_loop_runs() -> None:
    subject = Subject()
    subject.finished = {(0, 0)}
    assert subject.advance() == []
    assert subject.ends.next_deadline_ns() is None


def test_nobody_is_asked_in_a_job_without_loops() -> None:
    subject = Subject(plan_of((0, 1)))
    assert subject.advance() == []
    assert subject.ends.next_deadline_ns() is None


def test_two_equal_waves_at_rest_end_the_loop() -> None:
    subject = Subject()
    assert subject.advance() == ["wave 1 [1, 2, 4]"]
    assert subject.ends.next_deadline_ns() is None
    assert subject.answer(1, (5, 3), (4, 6)) == ["wave 2 [1, 2, 4]"]
    assert subject.answer(2, (5, 3), (4, 6)) == ["end 1"]
    assert subject.ends.next_deadline_ns() is None


def test_the_second_wave_waits_for_every_answer_to_the_first() -> None:
    subject = Subject()
    subject.advance()
    assert subject.answer(1, (5, 5)) == []


def test_records_that_moved_between_the_waves_belie_the_first() -> None:
    """Worker 1 answered before a record came back to it, worker 0 after it had sent the record."""
    subject = Subject()
    subject.advance()
    assert subject.answer(1, (5, 3), (4, 6)) == ["wave 2 [1, 2, 4]"]
    assert subject.answer(2, (6, 3), (5, 8)) == ["wave 3 [1, 2, 4]"]
    assert subject.answer(3, (6, 3), (5, 8)) == ["end 1"]


@pytest.mark.parametrize("second", [((5, 3), (4, 5)), ((5, 3), None)])
def test_records_on_their_way_and_work_to_do_belie_the_first(
    second: tuple[tuple[int, int] | None, ...],
) -> None:
    subject = Subject()
    subject.advance()
    subject.answer(1, (5, 3), (4, 6))
    assert subject.answer(2, *second) == []
    subject.now_ns = 2 * MS
    assert subject.advance() == ["wave 3 [1, 2, 4]"]
    assert subject.answer(3, (5, 3), (4, 6)) == ["wave 4 [1, 2, 4]"]


def test_the_pauses_after_work_was_found_grow_up_to_a_limit() -> None:
    subject = Subject()
    subject.advance()
    pauses = []
    for wave in range(1, 11):
        assert subject.answer(wave, None, (0, 0)) == []
        due_ns = subject.ends.next_deadline_ns()
        assert due_ns is not None
        pauses.append((due_ns - subject.now_ns) // MS)
        subject.now_ns = due_ns
        assert subject.advance() == [f"wave {wave + 1} [1, 2, 4]"]
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 200, 200, 200]


def test_answers_to_other_waves_mean_nothing() -> None:
    subject = Subject()
    subject.advance()
    subject.answer(1, (5, 3), (4, 6))
    assert subject.answer(1, (5, 3), (4, 6)) == []
    assert subject.answer(3, (5, 3), (4, 6)) == []
    assert subject.answer(2, (5, 3), (4, 6)) == ["end 1"]
    assert subject.answer(2, (5, 3), (4, 6)) == []


def test_a_new_attempt_knows_nothing_of_the_waves_before() -> None:
    subject = Subject()
    subject.advance()
    subject.answer(1, (5, 3), (4, 6))
    subject.ends.begin(2)
    assert subject.answer(2, (5, 3), (4, 6)) == ["wave 1 [1, 2, 4]"]
    assert subject.answer(1, (0, 0), (0, 0)) == ["wave 2 [1, 2, 4]"]


def test_a_restored_loop_that_has_ended_is_left_alone() -> None:
    subject = Subject()
    subject.finished |= {(1, 0), (1, 1)}
    assert subject.advance() == []


def test_a_restored_loop_whose_head_had_finished_in_part_ends_again() -> None:
    subject = Subject()
    subject.finished |= {(1, 0)}
    assert subject.advance() == ["wave 1 [1, 2, 4]"]


def test_an_inner_loop_ends_after_the_loop_around_it() -> None:
    subject = Subject(NESTED)
    assert subject.advance() == ["wave 1 [1, 2, 3, 5, 6]"]
    subject.answer(1, (1, 1), (0, 0))
    assert subject.answer(2, (1, 1), (0, 0)) == ["end 1"]
    assert subject.advance() == []
    subject.finished |= {(1, 0), (1, 1)}
    assert subject.advance() == ["wave 3 [2, 5]"]
    subject.answer(3, (1, 1), (0, 0))
    assert subject.answer(4, (1, 1), (0, 0)) == ["end 2"]


def test_loops_in_a_row_end_one_after_the_other_and_side_by_side_together() -> None:
    row = plan_of((0, 1), (1, 2), (2, 3), again=((1, 1), (2, 2)))
    assert Subject(row).advance() == ["wave 1 [3]"]
    side_by_side = plan_of((0, 1), (0, 2), (1, 3), (2, 3), again=((1, 1), (2, 2)))
    assert Subject(side_by_side).advance() == ["wave 1 [4]", "wave 2 [5]"]


# --- in the coordinator ---------------------------------------------------------------------------


def fed() -> Driven:
    """A coordinator of two workers that runs a job with a loop, whose sources have finished."""
    subject = Driven(plan=ONE)
    subject.start()
    deployed(subject)
    assert subject.said(0, TaskFinished(1, 0, 0)) == []
    assert subject.said(1, TaskFinished(1, 0, 1)) == ["ProbeLoop to 0", "ProbeLoop to 1"]
    return subject


def test_the_coordinator_asks_and_tells_the_head() -> None:
    subject = fed()
    assert subject.both(LoopProbed(1, 1, at_rest=False, sent=0, consumed=0)) == []
    assert subject.machine.next_deadline_ns() == 2 * MS
    assert subject.at(2 * MS) == ["ProbeLoop to 0", "ProbeLoop to 1"]
    assert subject.both(LoopProbed(1, 2, at_rest=True, sent=4, consumed=4)) == [
        "ProbeLoop to 0",
        "ProbeLoop to 1",
    ]
    assert subject.both(LoopProbed(1, 3, at_rest=True, sent=4, consumed=4)) == [
        "EndLoop to 0",
        "EndLoop to 1",
    ]


def test_the_loops_of_a_drained_job_end_in_the_same_way() -> None:
    subject = Driven(plan=ONE)
    subject.start()
    deployed(subject)
    assert subject.step(d.StopRequested(d.StopKind.DRAIN)) == ["Drain to 0", "Drain to 1"]
    subject.said(0, TaskFinished(1, 0, 0))
    assert subject.said(1, TaskFinished(1, 0, 1)) == ["ProbeLoop to 0", "ProbeLoop to 1"]


def test_a_worker_lost_between_the_waves_begins_the_waves_anew() -> None:
    subject = fed()
    subject.both(LoopProbed(1, 1, at_rest=True, sent=4, consumed=4))
    subject.said(0, LoopProbed(1, 2, at_rest=True, sent=4, consumed=4))
    subject.step(d.ConnectionLost(1, "reset"))
    assert subject.at(10 * MS) == ["claim above 1"]
    subject.step(d.EpochClaimed(2))
    subject.step(d.SinksRecovered(2))
    subject.register(1, 1)
    for connection in (0, 11):
        subject.said(connection, Deployed(2))
    assert subject.machine.phase is Phase.RUNNING
    subject.said(0, TaskFinished(2, 0, 0))
    assert subject.said(11, TaskFinished(2, 0, 1)) == ["ProbeLoop to 0", "ProbeLoop to 11"]


def test_an_answer_of_an_older_epoch_is_fenced() -> None:
    subject = fed()
    subject.both(LoopProbed(1, 1, at_rest=True, sent=4, consumed=4))
    fenced = subject.machine.fenced
    assert subject.both(LoopProbed(0, 2, at_rest=True, sent=4, consumed=4)) == []
    assert subject.machine.fenced == fenced + 2
