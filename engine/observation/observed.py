"""What can be seen of a running job, as plain data.

The live table, `headrace status`, the page and `JobHandle.observe` show the same observation, so
that no two of them disagree. Names stand in place of numbers wherever the plan has names; indexes
of tasks and edges are those of the plan. Times of the day are milliseconds since 1970.

A value that nobody has told yet is None.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Cause = Literal[
    "none",
    "deploying",
    "restarting",
    "slow_function",
    "skew",
    "slow_sink",
    "slow_source",
    "gil",
    "slow_storage",
    "small_window",
    "standstill",
]
Severity = Literal["ok", "note", "wrong"]
Trend = Literal["worse", "steady", "recovering"]


class Finding(msgspec.Struct, frozen=True):
    """What holds the job back, in one sentence.

    Attributes:
        severity: "wrong": records or checkpoints are late for it; "note": worth knowing.
        task: name of the task that the sentence is about.
        since_ms: when it was first seen.
        trend: of the bytes that wait before the task.
        parallelism: subtasks of the task that would keep up.
    """

    severity: Severity
    cause: Cause
    sentence: str
    task: str | None = None
    since_ms: int | None = None
    trend: Trend | None = None
    parallelism: int | None = None


class SubtaskObserved(msgspec.Struct, frozen=True):
    """One subtask.

    Attributes:
        busy, backpressured, idle: shares of the last seconds, 0 to 1, together 1.
        queued_bytes: waiting in its input and output queues.
        rows_in, rows_out: since the attempt began; a source takes in what it reads.
        call_s: how long the call that is under way has run.
    """

    subtask: int
    worker: int
    in_per_s: float
    out_per_s: float
    busy: float
    backpressured: float
    idle: float
    queued_bytes: int
    rows_in: int
    rows_out: int
    watermark_lag_s: float | None = None
    call_s: float | None = None


class TaskObserved(msgspec.Struct, frozen=True):
    """A task: its subtasks together.

    Attributes:
        operators: head first.
        busy, backpressured, idle: means over the subtasks.
        state_bytes: in the newest complete checkpoint.
        call_p50_ms, call_p99_ms: of the calls of its operators lately.
        late, failed: records since the attempt began.
    """

    index: int
    name: str
    operators: list[str]
    kind: Literal["source", "operator", "sink"]
    parallelism: int
    in_per_s: float
    out_per_s: float
    busy: float
    backpressured: float
    idle: float
    queued_bytes: int
    watermark_lag_s: float | None
    state_bytes: int | None
    call_p50_ms: float | None
    call_p99_ms: float | None
    late: int
    failed: int
    subtasks: list[SubtaskObserved]


class EdgeObserved(msgspec.Struct, frozen=True):
    """An edge; `producer` and `consumer` are indexes of tasks.

    Attributes:
        queued_bytes: waiting at both ends, on all channels.
        window_bytes: what may wait there; the edge is as full as `queued_bytes / window_bytes`.
    """

    key: str
    producer: int
    consumer: int
    partitioner: str
    queued_bytes: int
    window_bytes: int


class SubtaskCheckpoint(msgspec.Struct, frozen=True):
    """One subtask's part of a checkpoint, in milliseconds and bytes."""

    task: int
    subtask: int
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    state_bytes: int
    inflight_bytes: int


class CheckpointObserved(msgspec.Struct, frozen=True):
    """A checkpoint: complete, given up, or under way.

    Attributes:
        mode: how barriers travelled: "aligned", "unaligned" and so on.
        aligned_estimate_ms: what an aligned checkpoint would have taken: its in-flight bytes at
            the rate at which they are worked on.
        reason: why it was given up; of one under way: what it waits for.
        subtasks: of the newest complete one only.
    """

    checkpoint: int
    outcome: Literal["completed", "failed", "running"]
    mode: str
    started_ms: int
    duration_ms: float | None
    aligned_estimate_ms: float | None
    state_bytes: int | None
    inflight_bytes: int | None
    reason: str | None
    savepoint: bool
    subtasks: list[SubtaskCheckpoint]


class SinkObserved(msgspec.Struct, frozen=True):
    """A sink.

    Attributes:
        delivery: its promise, such as "exactly-once".
        last_commit_ms, last_commit_checkpoint: of the newest committed checkpoint.
        open_transactions: pre-committed and not committed.
        behind_s: age of the oldest record that may not be committed; of a sink that does not
            commit: of the oldest record that may not be written.
        records: written since the attempt began.
    """

    name: str
    delivery: str
    last_commit_ms: int | None
    last_commit_checkpoint: int | None
    open_transactions: int | None
    behind_s: float | None
    records: int


class WorkerObserved(msgspec.Struct, frozen=True):
    """A worker; `incarnation` counts its starts from 0."""

    worker: int
    pid: int | None
    host: str | None
    incarnation: int | None


class Observation(msgspec.Struct, frozen=True):
    """A look at a running job.

    Attributes:
        at_ms, started_ms: time of the look, and of the job's start.
        parallelism: of the task with most subtasks.
        mode: of its checkpoints; None: it takes none.
        checkpoints: the latest 60, oldest first.
        latency_p50_ms, latency_p99_ms: of records from source to sink, estimated.
        completed: checkpoints since the job started.
    """

    job: str
    phase: str
    at_ms: int
    started_ms: int
    attempt: int
    restarts: int
    runner: str
    parallelism: int
    mode: str | None
    finding: Finding
    tasks: list[TaskObserved]
    edges: list[EdgeObserved]
    checkpoints: list[CheckpointObserved]
    sinks: list[SinkObserved]
    workers: list[WorkerObserved]
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    completed: int = 0


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a job.

    Attributes:
        number: counts from 1; a later event has a higher one.
        at_ms: when the job's process heard of it.
        kind: a stable word, such as "checkpoint" or "attempt_failed".
    """

    number: int
    at_ms: int
    kind: str
    text: str
