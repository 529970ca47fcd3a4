"""The figure of the FLIP-76 experiment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.figure import main, series, unfinished

RESULTS = [
    {
        "bench": "flip76",
        "mode": "aligned",
        "sleep_ms": 1.0,
        "checkpoint_p50_ms": None,
        "underway_ms": 9000.0,
        "records_per_s": 2000,
        "latency_p50_ms": 5.0,
        "written_bytes": None,
    },
    {
        "bench": "flip76",
        "mode": "aligned",
        "sleep_ms": 0.1,
        "checkpoint_p50_ms": 40.0,
        "checkpoint_p50_ms_least": 30.0,
        "checkpoint_p50_ms_most": 90.0,
        "underway_ms": None,
        "records_per_s": 20000,
        "latency_p50_ms": 5.0,
        "written_bytes": 10,
    },
]


def test_a_line_has_the_range_over_the_rounds() -> None:
    line = series(RESULTS, "aligned", "checkpoint_p50_ms")
    assert (line.at, line.values, line.errors) == (["0.1"], [40.0], [[10.0], [50.0]])
    assert series(RESULTS, "aligned", "records_per_s").errors == [[0, 0], [0, 0]]


def test_an_arm_without_a_complete_checkpoint_is_drawn_at_least_so_long() -> None:
    late = unfinished(RESULTS, "aligned")
    assert (late.at, late.values) == (["1"], [9000.0])


def test_the_figure_shows_both(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(json.dumps(result) for result in RESULTS))
    assert main([str(results), str(tmp_path / "figure")]) == 0
    assert "#2f6db5" in (tmp_path / "figure.svg").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_the_figure_of_calls_shows_every_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    calls = [
        {"bench": "calls", "mode": "unaligned", "kind": kind, "call_s": length_s}
        | {"checkpoint_p50_ms": took_ms, "underway_ms": 70_000.0}
        for kind, took_ms in (("sleeping", 9.0), ("holding", None))
        for length_s in (0.001, 1.0)
    ]
    results = tmp_path / "calls.jsonl"
    results.write_text("\n".join(json.dumps(result) for result in calls))
    assert main([str(results), str(tmp_path / "figure")]) == 0
    drawn = (tmp_path / "figure.svg").read_text()
    assert "#d9730d" in drawn
    assert "none complete" in drawn
