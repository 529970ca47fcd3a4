from __future__ import annotations

import io

from rich.console import Console

from headrace.engine.cli.live import LiveReporter, bar
from headrace.engine.cli.rates import TaskRates

from .looks import BUSY, COMPLETE, PLAN, status_of

SECOND_NS = 1_000_000_000


def test_the_table_has_a_row_per_task_and_a_last_line() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    reporter = LiveReporter(PLAN, console)
    reporter.look(status_of(), 0)
    reporter.look(status_of(BUSY, restarts=2, notices=(COMPLETE,)), 2 * SECOND_NS)
    reporter.event("worker_lost", "worker 1 [was] lost")
    reporter.event("checkpoint", None, checkpoint=7)
    shown = text.getvalue()
    reporter.close()
    reporter.close()
    assert "totals -> out" in shown
    assert "2.5M" in shown
    assert (
        "running, attempt 1; chk-7: 38 ms, 0 B; 2 restarts; slowest: totals -> out (98% busy)"
        in shown
    )
    assert "worker 1 [was] lost" in shown


def test_a_bar_has_three_parts_that_fill_it() -> None:
    assert bar(task_with(0.5, 0.25)).plain == "█" * 10 + "▒" * 5 + "·" * 5
    assert bar(task_with(0.99, 0.0)).plain == "█" * 20
    assert bar(task_with(0.525, 0.475)).plain == "█" * 10 + "▒" * 10


def task_with(busy: float, backpressured: float) -> TaskRates:
    return TaskRates("task", 1, 0, 0, busy, backpressured, 0, 0)
