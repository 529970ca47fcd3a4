"""A running job in numbers, under the names of docs/metrics.md.

They follow Prometheus' conventions: base units, `_total`, no ids in names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.execution import ExecutionPlan
from ..contract.messages import SubtaskNumbers
from ..drivers.status import Status
from ..drivers.totals import Totals
from ..observation.observed import Observation


def metrics_of(plan: ExecutionPlan, status: Status, wall_ns: int) -> Mapping[str, float]:
    """Return current values; those of subtasks carry `{task="...",subtask="..."}`.

    `_total` counts all attempts, other values are of the running one.

    `wall_ns`: the present, in nanoseconds since 1970.
    """
    metrics: dict[str, float] = {
        "headrace_checkpoints_total": status.completed,
        "headrace_checkpoints_failed_total": status.failed,
        "headrace_restarts_total": status.restarts,
    }
    if status.checkpoints:
        last = status.checkpoints[-1]
        metrics["headrace_checkpoint_duration_seconds"] = last.duration_ns / 1e9
        metrics["headrace_checkpoint_last_success_timestamp_seconds"] = last.created_ms / 1e3
    for task in plan.tasks:
        for subtask in range(task.parallelism):
            place = (task.index, subtask)
            numbers = status.numbers.get(place, SubtaskNumbers(*place, 0, 0, 0, 0, 0, 0, 0))
            label = _label(task=task.name, subtask=str(subtask))
            for name, value in _of_subtask(numbers, status.past.get(place, Totals()), wall_ns):
                metrics[f"headrace_{name}{label}"] = value
    return metrics


def _of_subtask(numbers: SubtaskNumbers, past: Totals, wall_ns: int) -> Iterator[tuple[str, float]]:
    total = past.plus(numbers)
    yield "records_in_total", total.rows_in
    yield "records_out_total", total.rows_out
    yield "late_records_total", total.rows_late
    yield "failed_records_total", total.rows_failed
    yield "busy_seconds_total", total.busy_ns / 1e9
    yield "backpressured_seconds_total", total.backpressured_ns / 1e9
    yield "idle_seconds_total", total.idle_ns / 1e9
    yield "channel_queued_bytes", numbers.queued_bytes
    yield "channel_window_bytes", numbers.window_bytes
    if MIN_WATERMARK < numbers.watermark_ns < MAX_WATERMARK:
        yield "watermark_lag_seconds", (wall_ns - numbers.watermark_ns) / 1e9


def observed_metrics(observation: Observation) -> dict[str, float]:
    """Return values of edges, calls and sinks, and the latency; unknown ones are left out."""
    metrics: dict[str, float | None] = {}
    for edge in observation.edges:
        label = _label(edge=edge.key)
        metrics[f"headrace_edge_queued_bytes{label}"] = edge.queued_bytes
        metrics[f"headrace_edge_window_bytes{label}"] = edge.window_bytes
    for task in observation.tasks:
        for quantile, call_ms in (("0.5", task.call_p50_ms), ("0.99", task.call_p99_ms)):
            label = _label(task=task.name, quantile=quantile)
            metrics[f"headrace_call_seconds{label}"] = _seconds(call_ms)
    for quantile, latency_ms in (
        ("0.5", observation.latency_p50_ms),
        ("0.99", observation.latency_p99_ms),
    ):
        metrics[f"headrace_latency_seconds{_label(quantile=quantile)}"] = _seconds(latency_ms)
    for sink in observation.sinks:
        label = _label(sink=sink.name)
        metrics[f"headrace_sink_open_transactions{label}"] = sink.open_transactions
        metrics[f"headrace_sink_behind_seconds{label}"] = sink.behind_s
        metrics[f"headrace_sink_last_commit_timestamp_seconds{label}"] = _seconds(
            sink.last_commit_ms
        )
    return {name: value for name, value in metrics.items() if value is not None}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _label(**labels: str) -> str:
    """Labels as Prometheus writes them."""
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
