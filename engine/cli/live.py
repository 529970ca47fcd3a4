"""The live table of a run on a terminal: one row per task, and a summary as the last line.

The colours of the bar are Flink's (busy red, backpressured dark, idle blue); the three parts also
differ in their pattern, so that the bar can be read without colours.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..contract.numbers import mebibytes, rate
from ..contract.places import redacted
from ..observation.observed import Observation, TaskObserved
from ..observation.shown import standing

_BAR_CELLS = 20
_COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}


class LiveReporter:
    """A table that is redrawn in place, on standard error; lines scroll above it (a `Reporter`)."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None

    def event(self, event: str, text: str | None, **fields: Any) -> None:
        """See `Reporter`."""
        if text is not None:
            self._console.print(redacted(text), markup=False, highlight=False)

    def look(self, observation: Observation, now_ns: int) -> None:
        """See `Reporter`."""
        shown = view(observation)
        if self._live is None:
            self._live = Live(shown, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        """Remove the table."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def view(observation: Observation) -> Group:
    """Draw the table, the sentence, and the last line."""
    table = Table(box=None, pad_edge=False)
    table.add_column("operators", overflow="ellipsis", no_wrap=True)
    for column in ("rows/s in", "rows/s out"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(
        Text.assemble(("█ busy", "red"), " ▒ backpressured ", ("· idle", "blue")), no_wrap=True
    )
    table.add_column("MiB queued", justify="right", no_wrap=True)
    for task in observation.tasks:
        table.add_row(
            Text(task.name),
            rate(task.in_per_s),
            rate(task.out_per_s),
            bar(task),
            mebibytes(task.queued_bytes),
        )
    finding = observation.finding
    sentence = Text(finding.sentence, _COLOURS[finding.severity])
    return Group(table, Text(standing(observation)), sentence)


def bar(task: TaskObserved) -> Text:
    """Where the task's time goes, in three parts."""
    busy = round(task.busy * _BAR_CELLS)
    backpressured = min(round(task.backpressured * _BAR_CELLS), _BAR_CELLS - busy)
    idle = _BAR_CELLS - busy - backpressured
    return Text.assemble(
        ("█" * busy, "red"), ("▒" * backpressured, "bright_black"), ("·" * idle, "blue")
    )
