"""`/metrics`: read back by the Prometheus client's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.session.metrics import metrics_of
from headrace.engine.ui.durations import Durations
from headrace.engine.ui.exposition import exposition
from tests.engine.cli.looks import COMPLETE, PLAN, numbers_of, status_of


def samples(metrics: dict[str, float], durations: Durations) -> dict[tuple[str, str], float]:
    """{(name, labels but the job as text): value}."""
    found = {}
    text = exposition("shop", metrics, durations).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("job") == "shop"
            place = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            found[sample.name, place] = sample.value
    return found


def test_a_running_job_exposes_its_metrics_and_a_histogram_of_checkpoints() -> None:
    status = status_of(numbers_of(1, rows_in=100, queued_bytes=7), restarts=2, notices=(COMPLETE,))
    durations = Durations()
    durations.take(status)
    metrics = dict(metrics_of(PLAN, status, 0))
    assert "headrace_checkpoint_duration_seconds" in metrics
    found = samples(metrics, durations)
    task = "subtask=0,task=totals -> out"
    assert found["headrace_records_in_total", task] == 100
    assert found["headrace_channel_queued_bytes", task] == 7
    assert found["headrace_restarts_total", ""] == 2
    assert found["headrace_checkpoint_duration_seconds_bucket", "le=0.05"] == 1
    assert found["headrace_checkpoint_duration_seconds_bucket", "le=0.025"] == 0
    assert found["headrace_checkpoint_duration_seconds_sum", ""] == 0.038
    assert len([1 for name, _ in found if name.endswith("_count")]) == 1
    exposed = {name for name, _ in found}
    assert {name.partition("{")[0] for name in metrics} - exposed == {
        "headrace_checkpoint_duration_seconds"
    }


def test_names_of_operators_are_escaped() -> None:
    name = 'a "b" \\ c\nd'
    written = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    found = samples({f'headrace_sink_behind_seconds{{sink="{written}"}}': 1.0}, Durations())
    assert found["headrace_sink_behind_seconds", f"sink={name}"] == 1.0
