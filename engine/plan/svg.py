"""The plan as a picture: SVG text, for notebooks and `headrace graph --svg`.

Lines and letters have the colour of the text around the picture. A picture that stands alone is
dark on light, or light on dark where the reader's system asks for that. It loads nothing and runs
no script, and names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

from ..contract.execution import ExecutionPlan, TaskPlan
from ..contract.numbers import counted
from .layers import Arrow, Layout, Point, Size, laid_out
from .mermaid import logged_edges

#: Characters of a name, and of an edge's word, that are drawn; the whole one is the tooltip.
_NAME = 34
_WORD = 14
#: Pixels: of a wide letter at 13 px, of a box.
_LETTER = 7.6
_HEIGHT = 46.0
#: Inside an element of this class the text around the picture gives the colour.
EMBEDDED = "headrace-embedded"

_STYLE = (
    ".headrace-graph{color:#1b1f24;max-width:100%;height:auto;"
    "font:13px system-ui,sans-serif}"
    "@media (prefers-color-scheme:dark){.headrace-graph{color:#e6e8eb}}"
    f".{EMBEDDED} .headrace-graph{{color:inherit}}"
    ".headrace-graph text{fill:currentColor;text-anchor:middle}"
    ".headrace-graph .small{font-size:11px;opacity:.7}"
    ".headrace-graph rect{fill:currentColor;fill-opacity:.06;stroke:currentColor}"
    ".headrace-graph path{fill:none;stroke:currentColor;stroke-opacity:.6}"
    ".headrace-graph .tip{fill:currentColor;fill-opacity:.6;stroke:none}"
    ".headrace-graph .dashed{stroke-dasharray:5 4}"
)


def svg(plan: ExecutionPlan) -> str:
    """Draw tasks with their subtasks, and edges with their partitioner.

    Sources and sinks have round ends; back-edges and logged edges are dashed.

    Returns: an `<svg>` element, without a line break at its end.
    """
    arrows = [Arrow(edge.producer, edge.consumer, edge.feedback) for edge in plan.edges]
    words = [edge.partitioner.name for edge in plan.edges]
    dashed = [edge.feedback for edge in plan.edges]
    for writer, log, reader in logged_edges(plan):
        arrows.append(Arrow(writer, reader))
        words.append(log)
        dashed.append(True)
    layout = laid_out([_size(task) for task in plan.tasks], arrows)
    return "\n".join(
        [
            *_head(plan, layout),
            *_arrows(layout, arrows, words, dashed),
            *(
                line
                for task, at in zip(plan.tasks, layout.corners, strict=True)
                for line in _box(task, at)
            ),
            "</svg>",
        ]
    )


def _head(plan: ExecutionPlan, layout: Layout) -> Iterator[str]:
    width, height = (f"{side:.0f}" for side in layout.size)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="headrace-graph" role="img"'
        f' width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    )
    yield f"<title>{escape(f'job {plan.job}')}</title>"
    yield f"<style>{_STYLE}</style>"


def _arrows(
    layout: Layout, arrows: Sequence[Arrow], words: Sequence[str], dashed: Sequence[bool]
) -> Iterator[str]:
    for way, arrow, word, is_dashed in zip(layout.ways, arrows, words, dashed, strict=True):
        kind = ' class="dashed"' if is_dashed else ""
        yield f'<path{kind} d="{_straight(way) if arrow.back else _curved(way)}"/>'
        x, y = way[-1]
        yield f'<path class="tip" d="M{x:.1f} {y:.1f}l-8 -4v8z"/>'
        # Of a back-arrow the leg below everything; else the one that leaves the first column.
        one, other = way[2:4] if arrow.back else way[1:3]
        middle = Point((one.x + other.x) / 2, (one.y + other.y) / 2 - 5)
        yield _label(middle, word, _WORD, ' class="small"')


def _box(task: TaskPlan, at: Point) -> Iterator[str]:
    width, height = _size(task)
    radius = height / 2 if task.is_source or task.is_sink else 4
    yield (
        f'<rect x="{at.x:.1f}" y="{at.y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' rx="{radius:g}"/>'
    )
    middle = at.x + width / 2
    yield _label(Point(middle, at.y + 20), task.name, _NAME)
    subtasks = counted(task.parallelism, "subtask")
    yield _label(Point(middle, at.y + 36), subtasks, _NAME, ' class="small"')


def _size(task: TaskPlan) -> Size:
    letters = max(len(_cut(task.name, _NAME)), len("10 subtasks"))
    return Size(letters * _LETTER + 28, _HEIGHT)


def _label(at: Point, text: str, most: int, kind: str = "") -> str:
    shown = _cut(text, most)
    whole = "" if shown == text else f"<title>{escape(text)}</title>"
    return f'<text{kind} x="{at.x:.1f}" y="{at.y:.1f}">{whole}{escape(shown)}</text>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _straight(way: Sequence[Point]) -> str:
    return "M" + "L".join(f"{p.x:.1f} {p.y:.1f}" for p in way)


def _curved(way: Sequence[Point]) -> str:
    """Level at each point; between two points of one height that is a straight line."""
    parts = [f"M{way[0].x:.1f} {way[0].y:.1f}"]
    for one, other in pairwise(way):
        x = (one.x + other.x) / 2
        parts.append(f"C{x:.1f} {one.y:.1f} {x:.1f} {other.y:.1f} {other.x:.1f} {other.y:.1f}")
    return "".join(parts)
