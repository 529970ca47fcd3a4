"""`/metrics`: read back by the Prometheus client's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.observation.observed import SinkObserved
from headrace.engine.ui.board import Board
from headrace.engine.ui.exposition import exposition
from headrace.engine.ui.totals import Totals
from tests.engine.cli.looks import COMPLETE, numbers_of, status_of

from .made import FACTS, look


def samples(board: Board, totals: Totals) -> dict[tuple[str, str], float]:
    """{(name, labels but the job as text): value}."""
    text = exposition(board, totals).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("job") == "shop"
            place = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            found[sample.name, place] = sample.value
    return found


def test_a_running_job_exposes_counters_by_subtask_and_a_histogram_of_checkpoints() -> None:
    board, totals = Board(FACTS), Totals()
    board.show(look(latency_p50_ms=None, latency_p99_ms=250.0))
    numbers = numbers_of(1, rows_in=100, busy_ns=1_500_000_000)
    totals.take(status_of(numbers, restarts=2, notices=(COMPLETE,)))
    found = samples(board, totals)
    task = "subtask=0,task=score -> out"
    assert found["headrace_records_in_total", task] == 100
    assert found["headrace_busy_seconds_total", task] == 1.5
    assert found["headrace_checkpoints_total", ""] == 1
    assert found["headrace_restarts_total", ""] == 2
    assert found["headrace_checkpoint_duration_seconds_bucket", "le=0.05"] == 1
    assert found["headrace_checkpoint_duration_seconds_bucket", "le=0.025"] == 0
    assert found["headrace_checkpoint_duration_seconds_sum", ""] == 0.038
    assert found["headrace_channel_queued_bytes", "subtask=1,task=score -> out"] == 2048
    assert found["headrace_edge_queued_bytes", "edge=orders->score/0"] == 3 << 20
    assert found["headrace_sink_behind_seconds", "sink=out"] == 0.9
    assert found["headrace_latency_seconds", "quantile=0.99"] == 0.25
    assert ("headrace_latency_seconds", "quantile=0.5") not in found


def test_before_the_first_look_there_are_no_gauges() -> None:
    found = samples(Board(FACTS), Totals())
    assert found["headrace_checkpoints_total", ""] == 0
    assert not any(name.startswith("headrace_channel") for name, _ in found)


def test_names_of_operators_are_escaped() -> None:
    board = Board(FACTS)
    name = 'a "b" \\ c\nd'
    board.show(look(sinks=[SinkObserved(name, "", None, None, None, 1.0, 0)]))
    assert samples(board, Totals())["headrace_sink_behind_seconds", f"sink={name}"] == 1.0
