"""`/metrics`: the job's numbers for a Prometheus scraper, by subtask, under the names of
docs/metrics.md.

`prometheus_client` comes with the extra `ui`: nothing outside this room's server imports this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..observation.observed import Observation
from .board import Board
from .totals import COUNTERS, Totals

CONTENT_TYPE = CONTENT_TYPE_LATEST

_LABELS = ("job", "task", "subtask")


def exposition(board: Board, totals: Totals) -> bytes:
    """Return the numbers in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_JobCollector(board, totals))
    return generate_latest(registry)


class _JobCollector(Collector):
    def __init__(self, board: Board, totals: Totals) -> None:
        self._board = board
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names depend on no look."""
        return ()

    def collect(self) -> Iterator[Metric]:
        job, totals = self._board.facts.job, self._totals
        names = [task.name for task in self._board.facts.tasks]
        yield from _of_job(job, totals)
        yield from _counters(job, names, totals)
        if self._board.look is not None:
            yield from _gauges(job, self._board.look)


def _of_job(job: str, totals: Totals) -> Iterator[Metric]:
    yield InfoMetricFamily("headrace_job", "the job that this process runs", {"job": job})
    for name, meaning, value in (
        ("headrace_checkpoints", "completed checkpoints", totals.completed),
        ("headrace_restarts", "attempts that failed", totals.restarts),
    ):
        counter = CounterMetricFamily(name, meaning, labels=["job"])
        counter.add_metric([job], value)
        yield counter
    durations = HistogramMetricFamily(
        "headrace_checkpoint_duration_seconds",
        "from a checkpoint's trigger until it is durable",
        labels=["job"],
    )
    durations.add_metric([job], totals.durations.buckets(), totals.durations.sum_s)
    yield durations
    if totals.last_success_s is not None:
        yield _gauge(
            "headrace_checkpoint_last_success_timestamp_seconds",
            "when the newest completed checkpoint was triggered",
            ["job"],
            [((job,), totals.last_success_s)],
        )


def _counters(job: str, names: Sequence[str], totals: Totals) -> Iterator[Metric]:
    counters = totals.counters()
    for position, (name, meaning, _, _) in enumerate(COUNTERS):
        family = CounterMetricFamily(f"headrace_{name}", meaning, labels=_LABELS)
        for (task, subtask), sums in counters.items():
            if task < len(names):
                family.add_metric([job, names[task], str(subtask)], sums[position])
        yield family


def _gauges(job: str, look: Observation) -> Iterator[Metric]:
    subtasks = [
        ((job, task.name, str(subtask.subtask)), subtask)
        for task in look.tasks
        for subtask in task.subtasks
    ]
    yield _gauge(
        "headrace_channel_queued_bytes",
        "waiting in input and output queues",
        _LABELS,
        [(labels, subtask.queued_bytes) for labels, subtask in subtasks],
    )
    yield _gauge(
        "headrace_watermark_lag_seconds",
        "how far the watermark is behind the wall clock",
        _LABELS,
        [
            (labels, subtask.watermark_lag_s)
            for labels, subtask in subtasks
            if subtask.watermark_lag_s is not None
        ],
    )
    edges = [((job, edge.key), edge) for edge in look.edges]
    for name, meaning, values in (
        ("queued_bytes", "waiting on an edge", [(k, e.queued_bytes) for k, e in edges]),
        ("window_bytes", "credit of an edge", [(k, e.window_bytes) for k, e in edges]),
    ):
        yield _gauge(f"headrace_edge_{name}", meaning, ["job", "edge"], values)
    latency = [("0.5", look.latency_p50_ms), ("0.99", look.latency_p99_ms)]
    yield _gauge(
        "headrace_latency_seconds",
        "of records from source to sink lately, estimated",
        ["job", "quantile"],
        [((job, quantile), ms / 1e3) for quantile, ms in latency if ms is not None],
    )
    behind = [((job, s.name), s.behind_s) for s in look.sinks if s.behind_s is not None]
    yield _gauge(
        "headrace_sink_behind_seconds", "age of its oldest record", ["job", "sink"], behind
    )


def _gauge(
    name: str,
    meaning: str,
    labels: Sequence[str],
    values: Sequence[tuple[tuple[str, ...], float]],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for told, value in values:
        family.add_metric(told, value)
    return family
