"""A made job, as the page shows it: two tasks, an edge, checkpoints, a sink."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.engine.observation.observed import (
    CheckpointObserved,
    EdgeObserved,
    Finding,
    Observation,
    SinkObserved,
    SubtaskCheckpoint,
    SubtaskObserved,
    TaskObserved,
    WorkerObserved,
)
from headrace.engine.ui.facts import EdgeFacts, JobFacts, OperatorFacts, TaskFacts
from headrace.engine.ui.history import Point

START_MS = 1_800_000_000_000

FACTS = JobFacts(
    job="shop",
    max_parallelism=128,
    tasks=[
        TaskFacts("orders", 1, [OperatorFacts("orders", True, "job.py:3")]),
        TaskFacts("score -> out", 2, [OperatorFacts("score", False, "job.py:4")]),
    ],
    edges=[EdgeFacts("orders->score/0", 0, 1, "hash", ["key"])],
    settings={"parallelism": "2"},
    deliveries={"out": "exactly-once"},
    directory="ck",
)


def subtask(number: int, **known: Any) -> SubtaskObserved:
    numbers: dict[str, Any] = {"in_per_s": 500.0, "out_per_s": 500.0, "busy": 0.9, "idle": 0.1}
    numbers |= {"backpressured": 0.0, "queued_bytes": 2048, "rows_in": 10, "rows_out": 10}
    return SubtaskObserved(subtask=number, worker=number, **numbers | known)


def task(index: int, kind: Any, parallelism: int) -> TaskObserved:
    name = FACTS.tasks[index].name
    return TaskObserved(
        index=index,
        name=name,
        operators=name.split(" -> "),
        kind=kind,
        parallelism=parallelism,
        in_per_s=1000.0,
        out_per_s=1000.0,
        busy=0.9,
        backpressured=0.05,
        idle=0.05,
        queued_bytes=4096,
        watermark_lag_s=1.5 * (index + 1),
        state_bytes=None,
        call_p50_ms=None,
        call_p99_ms=None,
        late=0,
        failed=0,
        subtasks=[subtask(number) for number in range(parallelism)],
    )


def checkpoint(number: int, **known: Any) -> CheckpointObserved:
    numbers: dict[str, Any] = {
        "outcome": "completed",
        "mode": "unaligned",
        "started_ms": START_MS + number * 1000,
        "duration_ms": 38.0,
        "aligned_estimate_ms": 8900.0,
        "state_bytes": 1024,
        "inflight_bytes": 4096,
        "reason": None,
        "savepoint": False,
        "subtasks": [SubtaskCheckpoint(1, 0, 1.0, 2.0, 0.5, 30.0, 1024, 4096)],
    }
    return CheckpointObserved(checkpoint=number, **numbers | known)


def look(second: int = 0, **known: Any) -> Observation:
    """The job after so many seconds."""
    made = Observation(
        job="shop",
        phase="running",
        at_ms=START_MS + second * 1000,
        started_ms=START_MS,
        attempt=1,
        restarts=0,
        runner="threads",
        parallelism=2,
        mode="unaligned",
        finding=Finding("wrong", "slow_function", "score holds back orders.", "score -> out"),
        tasks=[task(0, "source", 1), task(1, "sink", 2)],
        edges=[EdgeObserved("orders->score/0", 0, 1, "hash", 3 << 20, 4 << 20)],
        checkpoints=[checkpoint(1, subtasks=[])],
        sinks=[SinkObserved("out", "exactly-once", START_MS, 1, 2, 0.9, 10)],
        workers=[WorkerObserved(0, 4711, "127.0.0.1", 0)],
    )
    return msgspec.structs.replace(made, **known)


def point(second: int) -> Point:
    return Point(START_MS + second * 1000, 1, 1.0, 1.0, 0, None, None, None, "ok", [90], [5])
