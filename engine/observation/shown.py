"""An observation for people: as text, and as HTML for notebooks.

Texts of the job, such as names and sentences, are escaped, and credentials in them hidden. The HTML
takes the colours of the page around it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from ..contract.numbers import counted, mebibytes, rate, seconds, size
from ..contract.places import redacted
from .observed import Observation, TaskObserved

_COLUMNS = ("task", "subtasks", "rows/s in", "rows/s out", "busy", "MiB queued")
#: Of the line beside the sentence, by severity; dark enough on white, light enough on black.
_COLOURS = {"ok": "#2e9e5b", "note": "#c98a00", "wrong": "#d9443a"}


def last_checkpoint(observation: Observation) -> str:
    """The newest complete checkpoint: `chk-42: 38 ms, 12.4 MiB`."""
    complete = [c for c in observation.checkpoints if c.outcome == "completed"]
    if not complete:
        return "no checkpoint yet"
    newest = complete[-1]
    duration_ns = int((newest.duration_ms or 0.0) * 1e6)
    return f"chk-{newest.checkpoint}: {seconds(duration_ns)}, {size(newest.state_bytes or 0)}"


def standing(observation: Observation) -> str:
    """Return phase, attempt, newest checkpoint and restarts: one line."""
    parts = [f"{observation.phase}, attempt {observation.attempt}", last_checkpoint(observation)]
    if observation.restarts:
        parts.append(counted(observation.restarts, "restart"))
    return "; ".join(parts)


def as_text(observation: Observation) -> str:
    """Return the standing, the sentence, and a row of numbers for each task."""
    rows = [_COLUMNS, *map(_row, observation.tasks)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = [
        f"job {observation.job!r}: {standing(observation)}",
        redacted(observation.finding.sentence),
    ]
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def as_html(observation: Observation) -> str:
    """Return the same as an element `<div>`."""
    finding = observation.finding
    style = f"border-left:3px solid {_COLOURS[finding.severity]};margin:4px 0;padding-left:8px"
    name, stands = html.escape(observation.job), html.escape(standing(observation))
    return "".join(
        [
            '<div class="headrace-job">',
            f"<div><b>{name}</b> {stands}</div>",
            f'<div style="{style}">{html.escape(redacted(finding.sentence))}</div>',
            "<table>",
            *_html_row("th", _COLUMNS),
            *(line for task in observation.tasks for line in _html_row("td", _row(task))),
            "</table></div>",
        ]
    )


def _row(task: TaskObserved) -> tuple[str, ...]:
    return (
        task.name,
        str(task.parallelism),
        rate(task.in_per_s),
        rate(task.out_per_s),
        f"{task.busy:.0%}",
        mebibytes(task.queued_bytes),
    )


def _html_row(cell: str, texts: tuple[str, ...]) -> Iterator[str]:
    yield "<tr>"
    for i, text in enumerate(texts):
        side = "left" if i == 0 else "right"
        yield f'<{cell} style="text-align:{side}">{html.escape(text)}</{cell}>'
    yield "</tr>"
