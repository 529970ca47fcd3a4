"""Metrics: numbers of subtasks, edges and sinks, in base units, under stable names."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import structs

import headrace as hr
from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.engine.drivers.totals import Totals
from headrace.engine.observation.observer import Observer
from headrace.engine.session.metrics import metrics_of, observed_metrics
from headrace.recovery.metadata import CheckpointMetadata

PLAN = hr.Job(
    "job",
    hr.read.sequence(10, name="numbers").rebalance().write.blackhole(name="out"),
    parallelism=2,
).plan()

WALL_NS = 1_700_000_000_000_000_000


def numbers(task: int, subtask: int) -> SubtaskNumbers:
    """Every number is another one, so that a mix-up shows."""
    return SubtaskNumbers(
        task,
        subtask,
        10,
        20,
        3_000_000_000,
        500_000_000,
        250_000_000,
        7,
        0,
        rows_late=4,
        rows_failed=6,
    )


def status(*known: SubtaskNumbers, checkpoints: tuple[CheckpointMetadata, ...] = ()) -> Status:
    numbers = {(n.task, n.subtask): n for n in known}
    return Status(Phase.RUNNING, 3, 2, numbers, (), checkpoints, 5)


def test_every_subtask_has_its_numbers() -> None:
    metrics = metrics_of(PLAN, status(numbers(0, 0), numbers(0, 1), numbers(1, 0)), WALL_NS)
    source, sink = (f'{{task="{task.name}",subtask="1"}}' for task in PLAN.tasks)
    assert metrics[f"headrace_records_in_total{source}"] == 10
    assert metrics[f"headrace_records_in_total{sink}"] == 0
    assert metrics[f"headrace_records_out_total{source}"] == 20
    assert metrics[f"headrace_late_records_total{source}"] == 4
    assert metrics[f"headrace_failed_records_total{source}"] == 6
    assert metrics[f"headrace_busy_seconds_total{source}"] == 3.0
    assert metrics[f"headrace_backpressured_seconds_total{source}"] == 0.5
    assert metrics[f"headrace_idle_seconds_total{source}"] == 0.25
    assert metrics[f"headrace_channel_queued_bytes{source}"] == 7


def test_counters_go_on_over_attempts_and_queues_do_not() -> None:
    again = replace(status(numbers(0, 0)), past={(0, 0): Totals(rows_in=100, busy_ns=10**9)})
    metrics = metrics_of(PLAN, again, WALL_NS)
    label = f'{{task="{PLAN.tasks[0].name}",subtask="0"}}'
    assert metrics[f"headrace_records_in_total{label}"] == 110
    assert metrics[f"headrace_busy_seconds_total{label}"] == 4.0
    assert metrics[f"headrace_channel_queued_bytes{label}"] == 7


def test_what_is_observed_has_numbers_and_what_is_unknown_has_none() -> None:
    observation = Observer(PLAN).look(status(numbers(0, 0)), 0, WALL_NS)
    (edge,) = observation.edges
    metrics = observed_metrics(structs.replace(observation, latency_p99_ms=1_500.0))
    assert metrics[f'headrace_edge_queued_bytes{{edge="{edge.key}"}}'] == 0
    assert metrics['headrace_latency_seconds{quantile="0.99"}'] == 1.5
    assert 'headrace_latency_seconds{quantile="0.5"}' not in metrics


def test_the_jobs_own_numbers_are_there_from_the_start() -> None:
    metrics = metrics_of(PLAN, status(), WALL_NS)
    assert metrics["headrace_checkpoints_total"] == 5
    assert metrics["headrace_restarts_total"] == 2
    assert "headrace_checkpoint_duration_seconds" not in metrics, "none yet"
    assert all(value == 0 for name, value in metrics.items() if "task=" in name)


def test_the_last_checkpoint_is_told() -> None:
    older = CheckpointMetadata(
        job="job",
        checkpoint=1,
        epoch=1,
        mode="aligned",
        savepoint=False,
        created_ms=1_000,
        duration_ns=9,
        max_parallelism=128,
        tasks=[],
        edges=[],
        subtasks=[],
        transactions=[],
    )
    last = msgspec.structs.replace(older, checkpoint=2, created_ms=2_500, duration_ns=30_000_000)
    metrics = metrics_of(PLAN, status(checkpoints=(older, last)), WALL_NS)
    assert metrics["headrace_checkpoint_duration_seconds"] == 0.03
    assert metrics["headrace_checkpoint_last_success_timestamp_seconds"] == 2.5


def test_a_subtask_that_has_passed_a_watermark_tells_the_lag() -> None:
    def at(subtask: int, watermark_ns: int) -> SubtaskNumbers:
        return msgspec.structs.replace(numbers(1, subtask), watermark_ns=watermark_ns)

    known = status(numbers(0, 0), at(0, WALL_NS - 3_000_000_000))
    metrics = metrics_of(PLAN, known, WALL_NS)
    lags = {name: value for name, value in metrics.items() if "watermark" in name}
    name = PLAN.tasks[1].name
    assert lags == {f'headrace_watermark_lag_seconds{{task="{name}",subtask="0"}}': 3.0}
    ended = status(at(0, MAX_WATERMARK), at(1, MIN_WATERMARK))
    assert not [name for name in metrics_of(PLAN, ended, WALL_NS) if "watermark" in name]
