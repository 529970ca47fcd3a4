"""From the driver's looks to observations."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from headrace.engine.contract.messages import EdgeNumbers, SubtaskNumbers
from headrace.engine.coordinator.coordinator import CoordinatorStatistics
from headrace.engine.drivers.status import Committed, WorkerSeen
from headrace.engine.observation.observed import Observation
from headrace.engine.observation.observer import Observer, Setting
from tests.engine.cli.looks import CHECKPOINT, COMPLETE, PLAN, numbers_of, status_of

S = 1_000_000_000
WALL_NS = 1_700_000_000 * S


def at(second: int, task: int = 1) -> SubtaskNumbers:
    """1,000 rows a second, half of the time busy."""
    half_ns = second * S // 2
    return numbers_of(
        task, rows_in=1000 * second, rows_out=second, busy_ns=half_ns, idle_ns=half_ns
    )


def look(observer: Observer, second: int, *numbers: SubtaskNumbers, epoch: int = 1) -> Observation:
    return observer.look(status_of(*numbers, epoch=epoch), second * S, WALL_NS + second * S)


def test_rates_go_by_the_time_between_two_totals_not_between_two_looks() -> None:
    observer = Observer(PLAN)
    look(observer, 0, at(1))
    observation = look(observer, 2, at(2))
    task = observation.tasks[1]
    assert (task.in_per_s, task.out_per_s) == (1000.0, 1.0)
    assert (task.busy, task.backpressured, task.idle) == (0.5, 0.0, 0.5)


def test_the_first_numbers_count_from_the_beginning_of_the_attempt() -> None:
    task = look(Observer(PLAN), 0, at(3)).tasks[1]
    assert task.in_per_s == 1000.0


def test_looks_older_than_some_seconds_are_forgotten() -> None:
    observer = Observer(PLAN)
    for second in range(20):
        look(observer, second, at(min(second, 10)))
    still = numbers_of(1, rows_in=10_000, rows_out=10, busy_ns=5 * S, idle_ns=15 * S)
    assert look(observer, 20, still).tasks[1].in_per_s == pytest.approx(0.0)


def test_a_new_attempt_starts_from_zero() -> None:
    observer = Observer(PLAN)
    look(observer, 0, at(8))
    look(observer, 1, at(9))
    assert look(observer, 2, at(2), epoch=2).tasks[1].in_per_s == 1000.0


def test_the_last_numbers_of_an_attempt_stay_until_there_are_new_ones() -> None:
    observer = Observer(PLAN)
    look(observer, 0, at(3))
    assert look(observer, 1).tasks[1].subtasks[0].rows_in == 3000


def test_an_edge_is_as_full_as_both_its_ends() -> None:
    sent = msgspec.structs.replace(at(1, task=0), outputs=[EdgeNumbers(0, 10, 100)])
    received = msgspec.structs.replace(at(1), inputs=[EdgeNumbers(0, 30, 300)])
    (edge,) = look(Observer(PLAN), 0, sent, received).edges
    assert (edge.queued_bytes, edge.window_bytes) == (40, 400)
    assert (edge.producer, edge.consumer, edge.key) == (0, 1, PLAN.edges[0].key)


def test_workers_and_their_subtasks_are_told() -> None:
    status = replace(status_of(at(1)), seen={3: WorkerSeen(77, "here", 2)}, places={(1, 0): 3})
    observation = Observer(PLAN).look(status, 0, WALL_NS)
    assert observation.tasks[1].subtasks[0].worker == 3
    (worker,) = observation.workers
    assert (worker.worker, worker.pid, worker.host, worker.incarnation) == (3, 77, "here", 2)


def test_a_sink_is_as_far_behind_as_the_checkpoint_by_which_it_committed_is_old() -> None:
    wall_ms = WALL_NS // 1_000_000
    complete = msgspec.structs.replace(CHECKPOINT, created_ms=wall_ms - 5_000)
    status = replace(
        status_of(at(1), notices=(replace(COMPLETE, checkpoint=complete),)),
        commits={"out": Committed(7, wall_ms - 4_900)},
        coordinator=CoordinatorStatistics(open_transactions={"out": 2}),
    )
    (sink,) = (
        Observer(PLAN, Setting(deliveries={"out": "exactly-once"})).look(status, 0, WALL_NS).sinks
    )
    assert (sink.name, sink.delivery, sink.records) == ("out", "exactly-once", 1)
    assert (sink.last_commit_checkpoint, sink.last_commit_ms) == (7, wall_ms - 4_900)
    assert sink.behind_s == 5.0


def test_an_observation_travels_as_json() -> None:
    observation = look(Observer(PLAN), 0, at(1))
    assert msgspec.json.decode(msgspec.json.encode(observation), type=Observation) == observation
