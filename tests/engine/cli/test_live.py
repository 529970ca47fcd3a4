from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from headrace.engine.cli.live import LiveReporter, bar
from headrace.engine.observation.observed import TaskObserved

from .looks import BUSY, COMPLETE, observed

SECOND_NS = 1_000_000_000


def test_the_table_has_a_row_per_task_a_last_line_and_the_sentence() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    reporter = LiveReporter(console)
    reporter.look(observed(), 0)
    reporter.look(observed(BUSY, restarts=2, notices=(COMPLETE,)), 2 * SECOND_NS)
    reporter.event("worker_lost", "worker 1 [was] lost")
    reporter.event("checkpoint", None, checkpoint=7)
    shown = text.getvalue()
    reporter.close()
    reporter.close()
    assert "totals -> out" in shown
    assert "1.2M" in shown
    assert "running, attempt 1; chk-7: 38 ms, 0 B; 2 restarts" in shown
    assert "totals (1 subtask, 98 % busy) is the busiest operator" in shown
    assert "worker 1 [was] lost" in shown


def test_a_bar_has_three_parts_that_fill_it() -> None:
    assert bar(task_with(0.5, 0.25)).plain == "█" * 10 + "▒" * 5 + "·" * 5
    assert bar(task_with(0.99, 0.0)).plain == "█" * 20
    assert bar(task_with(0.525, 0.475)).plain == "█" * 10 + "▒" * 10


def task_with(busy: float, backpressured: float) -> TaskObserved:
    return replace(observed().tasks[1], busy=busy, backpressured=backpressured)
