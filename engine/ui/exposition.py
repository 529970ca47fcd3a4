"""`/metrics`: the numbers of `JobHandle.metrics` for a Prometheus scraper.

The only difference is `headrace_checkpoint_duration_seconds`, which is a histogram here: a scraper
that looks every half minute would miss most checkpoints in the duration of the newest one.

`prometheus_client` comes with the extra `ui`: nothing outside this room's server imports this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from .durations import Durations

CONTENT_TYPE = CONTENT_TYPE_LATEST

_DURATION = "headrace_checkpoint_duration_seconds"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def exposition(job: str, metrics: Mapping[str, float], durations: Durations) -> bytes:
    """Return the numbers in Prometheus' text format, each with a label `job`.

    Args:
        metrics: {name, with labels as in `name{task="a",subtask="0"}`: value}.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_JobCollector(job, metrics, durations))
    return generate_latest(registry)


class _JobCollector(Collector):
    def __init__(self, job: str, metrics: Mapping[str, float], durations: Durations) -> None:
        self._job = job
        self._metrics = metrics
        self._durations = durations

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names depend on the job."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for key, value in self._metrics.items():
            name, _, rest = key.partition("{")
            if name == _DURATION:
                continue
            labels = {"job": self._job}
            labels |= {label: _ESCAPED.sub(_raw, text) for label, text in _LABEL.findall(rest)}
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(name, "see docs/metrics.md", labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()
        buckets, sum_s = self._durations.histogram()
        durations = HistogramMetricFamily(
            _DURATION, "from a checkpoint's trigger until it is durable", labels=["job"]
        )
        durations.add_metric([self._job], buckets, sum_s)
        yield durations


def _raw(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
