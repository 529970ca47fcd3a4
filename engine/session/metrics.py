"""A running job in numbers, under the names of docs/metrics.md.

They follow Prometheus' conventions: base units, `_total`, no ids in names.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.execution import ExecutionPlan
from ..drivers.status import Status


def metrics_of(plan: ExecutionPlan, status: Status, wall_ns: int) -> Mapping[str, float]:
    """Return current values; per-task ones carry `{task="..."}`.

    Sums over the subtasks of the running attempt.

    `wall_ns`: the present, in nanoseconds since 1970.
    """
    metrics: dict[str, float] = {
        "headrace_checkpoints_total": status.completed,
        "headrace_restarts_total": status.restarts,
    }
    if status.checkpoints:
        last = status.checkpoints[-1]
        metrics["headrace_checkpoint_duration_seconds"] = last.duration_ns / 1e9
        metrics["headrace_checkpoint_last_success_timestamp_seconds"] = last.created_ms / 1e3
    for task in plan.tasks:
        numbers = [n for (index, _), n in status.numbers.items() if index == task.index]
        label = f'{{task="{task.name}"}}'
        for name, value in (
            ("records_in_total", sum(n.rows_in for n in numbers)),
            ("records_out_total", sum(n.rows_out for n in numbers)),
            ("late_records_total", sum(n.rows_late for n in numbers)),
            ("failed_records_total", sum(n.rows_failed for n in numbers)),
            ("busy_seconds_total", sum(n.busy_ns for n in numbers) / 1e9),
            ("backpressured_seconds_total", sum(n.backpressured_ns for n in numbers) / 1e9),
            ("idle_seconds_total", sum(n.idle_ns for n in numbers) / 1e9),
            ("channel_queued_bytes", sum(n.queued_bytes for n in numbers)),
            ("channel_window_bytes", sum(n.window_bytes for n in numbers)),
        ):
            metrics[f"headrace_{name}{label}"] = value
        told = [n.watermark_ns for n in numbers if MIN_WATERMARK < n.watermark_ns < MAX_WATERMARK]
        if told:
            metrics[f"headrace_watermark_lag_seconds{label}"] = (wall_ns - min(told)) / 1e9
    return metrics
