"""A job's standing, in words for people and in fields for machines."""

from __future__ import annotations

from typing import Any

from headrace.recovery import sizes
from headrace.recovery.metadata import CheckpointMetadata

from ..contract.numbers import counted, mebibytes, milliseconds, rate
from ..observation.observed import Observation
from ..observation.shown import last_checkpoint


def progress_fields(observation: Observation) -> dict[str, Any]:
    """How a job stands, for JSON."""
    return {
        "phase": observation.phase,
        "attempt": observation.attempt,
        "restarts": observation.restarts,
        "checkpoints": observation.completed,
        "slowest": observation.finding.task,
        "finding": observation.finding.cause,
        "sentence": observation.finding.sentence,
        "tasks": [
            {
                "task": task.name,
                "rows": sum(s.rows_in or s.rows_out for s in task.subtasks),
                "rows_in_per_s": round(task.in_per_s),
                "rows_out_per_s": round(task.out_per_s),
                "busy": round(task.busy, 3),
                "backpressured": round(task.backpressured, 3),
                "idle": round(task.idle, 3),
                "queued_bytes": task.queued_bytes,
            }
            for task in observation.tasks
        ],
    }


def checkpoint_fields(metadata: CheckpointMetadata) -> dict[str, Any]:
    """A complete checkpoint, for JSON."""
    return {
        "checkpoint": metadata.checkpoint,
        "mode": metadata.mode,
        "duration_ms": milliseconds(metadata.duration_ns),
        "state_bytes": sum(sizes.state_bytes(subtask) for subtask in metadata.subtasks),
    }


def summary(observation: Observation) -> str:
    """Return the standing for people: one line."""
    taken = max((task.out_per_s for task in observation.tasks), default=0.0)
    queued = mebibytes(sum(task.queued_bytes for task in observation.tasks))
    parts = [f"{rate(taken)} rows/s", f"{queued} MiB queued", last_checkpoint(observation)]
    if observation.restarts:
        parts.append(counted(observation.restarts, "restart"))
    return f"{', '.join(parts)}. {observation.finding.sentence}"
