"""A job's standing, in words for people and in fields for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.recovery import sizes
from headrace.recovery.metadata import CheckpointMetadata

from ..contract.numbers import mebibytes, milliseconds, rate, seconds, size
from ..coordinator.rules import Phase
from ..drivers.status import Status
from .rates import TaskRates, slowest


def progress_fields(status: Status, rates: Sequence[TaskRates]) -> dict[str, Any]:
    """How a job stands, for JSON."""
    slow = slowest(rates)
    return {
        "phase": status.phase.value,
        "attempt": status.epoch,
        "restarts": status.restarts,
        "checkpoints": status.completed,
        "slowest": None if slow is None else slow.task,
        "tasks": [
            {
                "task": task.task,
                "rows": task.rows,
                "rows_in_per_s": round(task.in_per_s),
                "rows_out_per_s": round(task.out_per_s),
                "busy": round(task.busy, 3),
                "backpressured": round(task.backpressured, 3),
                "idle": round(task.idle, 3),
                "queued_bytes": task.queued_bytes,
            }
            for task in rates
        ],
    }


def checkpoint_fields(metadata: CheckpointMetadata) -> dict[str, Any]:
    """A complete checkpoint, for JSON."""
    return {
        "checkpoint": metadata.checkpoint,
        "mode": metadata.mode,
        "duration_ms": milliseconds(metadata.duration_ns),
        "state_bytes": state_bytes(metadata),
    }


def state_bytes(metadata: CheckpointMetadata) -> int:
    """Bytes of state in a checkpoint."""
    return sum(sizes.state_bytes(subtask) for subtask in metadata.subtasks)


def last_checkpoint(status: Status) -> str:
    """The newest checkpoint for people: `chk-42: 38 ms, 12.4 MiB`."""
    if not status.checkpoints:
        return "no checkpoint yet"
    newest = status.checkpoints[-1]
    return f"chk-{newest.checkpoint}: {seconds(newest.duration_ns)}, {size(state_bytes(newest))}"


def bottleneck(status: Status, rates: Sequence[TaskRates]) -> str:
    """Name the task that holds back the others, for people; or say that operators still open."""
    if status.phase is Phase.DEPLOYING:
        return "operators open and state is loaded"
    slow = slowest(rates)
    return "no operator is busy" if slow is None else f"slowest: {slow.task} ({slow.busy:.0%} busy)"


def counted(number: int, noun: str) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summary(status: Status, rates: Sequence[TaskRates]) -> str:
    """Return the standing for people: one line."""
    taken = max((task.out_per_s for task in rates), default=0.0)
    queued = mebibytes(sum(task.queued_bytes for task in rates))
    parts = [
        f"{rate(taken)} rows/s",
        bottleneck(status, rates),
        f"{queued} MiB queued",
        last_checkpoint(status),
    ]
    if status.restarts:
        parts.append(counted(status.restarts, "restart"))
    return ", ".join(parts)
