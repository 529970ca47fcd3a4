from __future__ import annotations

import json

import pytest

from headrace.engine.cli.live import LiveReporter
from headrace.engine.cli.reporter import JsonReporter, LineReporter, open_reporter

from .looks import BUSY, COMPLETE, observed

SECOND_NS = 1_000_000_000


def test_a_line_every_ten_seconds_says_rate_bottleneck_and_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = LineReporter()
    reporter.look(observed(), 0)
    for second in range(6, 11):
        reporter.look(observed(BUSY, restarts=1, notices=(COMPLETE,)), second * SECOND_NS)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "10 s: 2 rows/s, 3.0 MiB queued, chk-7: 38 ms, 0 B, 1 restart."
        " totals (1 subtask, 98 % busy) is the busiest operator, and keeps up.\n"
    )


def test_lines_are_talk_and_objects_are_results(capsys: pytest.CaptureFixture[str]) -> None:
    for reporter in (LineReporter(), JsonReporter()):
        reporter.event("killing", "a line for people", worker=1)
        reporter.event("checkpoint", None, checkpoint=7)
        reporter.close()
    out, err = capsys.readouterr()
    assert err == "a line for people\n"
    assert [json.loads(line) for line in out.splitlines()] == [
        {"event": "killing", "worker": 1},
        {"event": "checkpoint", "checkpoint": 7},
    ]


def test_machines_get_progress_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = JsonReporter()
    for tenth in range(25):
        reporter.look(observed(BUSY), tenth * SECOND_NS // 10)
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [found["event"] for found in objects] == ["progress", "progress"]
    assert list(objects[0]["tasks"][1]) == [
        "task",
        "rows",
        "rows_in_per_s",
        "rows_out_per_s",
        "busy",
        "backpressured",
        "idle",
        "queued_bytes",
    ]
    assert objects[0]["tasks"][1]["task"] == "totals -> out"
    assert objects[0]["tasks"][1]["queued_bytes"] == 3 << 20


def test_a_table_is_for_terminals_that_want_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(open_reporter(as_json=False), LineReporter)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert isinstance(open_reporter(as_json=False), LiveReporter)
    assert isinstance(open_reporter(as_json=True), JsonReporter)
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(open_reporter(as_json=False), LineReporter)
