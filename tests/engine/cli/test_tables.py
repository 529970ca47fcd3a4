from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.cli.tables import (
    print_table,
    show_details,
    show_listing,
    show_measured,
    show_verification,
)

ROW = {
    "job": "orders",
    "checkpoint": 7,
    "status": "complete",
    "mode": "aligned",
    "created": "2026-01-01T00:00:00.000+00:00",
    "duration_ns": 38_000_000,
    "state_bytes": 3200,
    "inflight_bytes": 2 << 20,
    "problem": None,
}
DAMAGED = ROW | {
    "status": "damaged",
    "mode": None,
    "created": None,
    "duration_ns": None,
    "state_bytes": None,
    "inflight_bytes": None,
    "problem": "its checksum is wrong",
}


def test_a_listing_names_what_is_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_listing([ROW], "here", as_json=False) == 0
    fine = capsys.readouterr().out
    assert show_listing([ROW, DAMAGED], "here", as_json=False) == 3
    damaged = capsys.readouterr().out
    assert "38 ms" in fine
    assert "3.1 KiB" in fine
    assert "2.0 MiB" in fine
    assert "orders/chk-7: its checksum is wrong" in damaged.splitlines()


def test_nothing_to_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_listing([], "here", as_json=False) == 0
    assert show_verification([], "here", as_json=False) == 0
    assert capsys.readouterr().out == "no checkpoints in here\nno complete checkpoints in here\n"


def test_details_show_the_state_of_each_subtask(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"operator": "totals", "state": "aggregate", "kind": "keyed", "rows": 4, "length": 576}
    database = {
        "operator": "seen",
        "format": "rocksdb",
        "schemas": [{"state": "first"}, {"state": "last"}],
        "shared": [{"length": 3 << 20}],
        "own": [{"length": 1 << 20}],
    }
    metadata = {
        "tasks": [{"name": "numbers"}, {"name": "totals -> out"}],
        "subtasks": [
            {"task": 0, "index": 0, "finished": True, "states": [], "databases": []},
            {"task": 1, "index": 0, "finished": False, "states": [state], "databases": [database]},
        ],
    }
    nothing: dict[str, Any] = {"by_task": [], "by_subtask": []}
    assert show_details(ROW | nothing | {"metadata": metadata}, as_json=False) == 0
    out = capsys.readouterr().out
    assert "checkpoint: 7" in out.splitlines()
    states = [" ".join(line.split()) for line in out.splitlines()]
    assert "totals -> out 0 no totals aggregate (keyed) 4 576 B" in states
    assert "totals -> out 0 no seen first, last (rocksdb) 4.0 MiB" in states
    assert show_details(DAMAGED | nothing | {"metadata": None}, as_json=True) == 3


def test_details_show_times_and_what_was_in_flight_by_side(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = {
        "name": "totals -> out",
        "end_to_end_ms": 20.0,
        "start_delay_ms": 1.5,
        "alignment_ms": 12.0,
        "sync_ms": 0.03,
        "async_ms": 4.0,
        "state_bytes": 576,
        "input_records": 0,
        "input_bytes": 0,
        "output_records": 1200,
        "output_bytes": 2048,
        "replay_records": 1,
        "replay_bytes": 8,
        "inflight_written_bytes": 2056,
        "inflight_referenced_bytes": 0,
        "holds": [
            {"by": "map -> totals/0 1>0", "for": "barrier", "held_ms": 2.0},
            {"by": "out", "for": "work", "held_ms": 9.5},
        ],
    }
    row = ROW | {
        "by_task": [place | {"subtasks": 2}],
        "by_subtask": [place | {"subtask": 1}],
        "metadata": {"tasks": [], "subtasks": []},
    }
    assert show_details(row, as_json=False) == 0
    out = capsys.readouterr().out
    times = "20 1.5 12 0.03 4"
    amounts = "576 B - 1,200 (2.0 KiB) 1 (8 B) 2.0 KiB 0 B"
    found = [
        " ".join(line.split()[3:]) for line in out.splitlines() if line.startswith("totals -> out")
    ]
    assert found[:4] == [f"all 2 {times}", f"all 2 {amounts}", f"1 {times}", f"1 {amounts}"]
    # Longest first: what is to be looked at.
    assert found[4:] == ["work out 9.5", "barrier map -> totals/0 1>0 2"]


def test_verification_lists_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"job": "orders", "checkpoint": 7, "status": "damaged", "problems": ["one", "two"]}
    assert show_verification([row], "here", as_json=False) == 3
    assert capsys.readouterr().out.splitlines()[-2:] == ["orders/chk-7: one", "orders/chk-7: two"]
    assert show_verification([row], "here", as_json=True) == 3


def test_in_a_pipe_a_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "text"), [("long", "x" * 500)])
    assert capsys.readouterr().out.splitlines()[1].split() == ["long", "x" * 500]


def test_a_wrong_answer_of_a_benchmark_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_measured({"records_per_s": 1_234_567, "correct": True}, as_json=False) == 0
    assert capsys.readouterr().out == "records_per_s: 1,234,567\ncorrect: True\n"
    assert show_measured({"correct": False}, as_json=True) == 3
    capsys.readouterr()
    assert show_measured({"checkpoint_p99_ms": None}, as_json=False) == 0
    assert capsys.readouterr().out == "checkpoint_p99_ms: -\n"
