"""What is kept of a page below the checkpoint directory, as bytes and back.

JSON lines, of which each begins with its kind:

    {"headrace-history": 1}            format and version: first line, never change
    ["facts", JobFacts]
    ["look", Observation]              the latest one
    ["point", Point]                   many, oldest first
    ["event", Event]                   many, oldest first
    ["checkpoint", CheckpointObserved] with its subtasks

Whoever can write to the directory can write anything there, so a reader believes nothing: sizes are
limited before anything is decoded, every line is checked against its schema, texts and lists have
limits, numbers are finite, and a line that does not fit is left out. Texts are data to the page,
which never takes them for HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..observation.observed import CheckpointObserved, Event, Observation
from .board import CHECKPOINTS_MAX, EVENTS_MAX, Board
from .facts import JobFacts
from .history import Point

VERSION = 1
#: A recording holds at most so many bytes; a larger one is not read.
BYTES_MAX = 8 << 20
_LINES_MAX = 8_000
_TEXT_CHARS_MAX = 20_000
_ITEMS_MAX = 20_000
#: Parts of checkpoints by subtask that are recorded, all together: about half a MiB.
_PARTS_MAX = 4_000


class Unreadable(ValueError):
    """The bytes are no recording; the text says why."""


@dataclass(slots=True)
class Recording:
    """The content of a recording."""

    facts: JobFacts | None = None
    look: Observation | None = None
    points: list[Point] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    checkpoints: list[CheckpointObserved] = field(default_factory=list)


def encode(board: Board) -> bytes:
    """Return what a board shows, as a recording."""
    lines: list[Any] = [{"headrace-history": VERSION}, ["facts", board.facts]]
    if board.look is not None:
        lines.append(["look", board.look])
    lines += [["point", point] for point in board.thinned()]
    lines += [["event", event] for event in board.events()]
    lines += [["checkpoint", checkpoint] for checkpoint in _afforded(board.detailed_checkpoints())]
    return msgspec.json.Encoder().encode_lines(lines)


def _afforded(checkpoints: Sequence[CheckpointObserved]) -> list[CheckpointObserved]:
    """Return the newest checkpoints whose parts a recording has room for, oldest first."""
    kept: list[CheckpointObserved] = []
    room = _PARTS_MAX
    for checkpoint in reversed(checkpoints):
        room -= len(checkpoint.subtasks)
        if room < 0:
            break
        kept.append(checkpoint)
    return kept[::-1]


def decode(data: bytes) -> Recording:
    """Read a recording. Lines that do not fit are left out. Raises: Unreadable."""
    if len(data) > BYTES_MAX:
        raise Unreadable(f"it has {len(data)} bytes, more than {BYTES_MAX}")
    first, *lines = data.split(b"\n", _LINES_MAX)[:_LINES_MAX]
    try:
        head = msgspec.json.decode(first, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("its first line is none of ours") from error
    if head.get("headrace-history") != VERSION:
        raise Unreadable(f"its version is {head.get('headrace-history')}, not {VERSION}")
    recording = Recording()
    for line in lines:
        _take(recording, line)
    del recording.events[:-EVENTS_MAX], recording.checkpoints[:-CHECKPOINTS_MAX]
    return recording


def _take(recording: Recording, line: bytes) -> None:
    try:
        kind, raw = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        taken = _TAKERS.get(kind)
        if taken is None:
            return
        type_, put = taken
        value = msgspec.json.decode(raw, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if is_modest(msgspec.to_builtins(value)):
        put(recording, value)


def is_modest(value: object) -> bool:
    """Tell whether texts and lists have a decent length, and numbers are finite."""
    match value:
        case str():
            return len(value) <= _TEXT_CHARS_MAX
        case float():
            return math.isfinite(value)
        case list():
            return len(value) <= _ITEMS_MAX and all(map(is_modest, value))
        case dict():
            return len(value) <= _ITEMS_MAX and all(
                is_modest(key) and is_modest(item) for key, item in value.items()
            )
        case _:
            return True


def _set_facts(recording: Recording, facts: JobFacts) -> None:
    recording.facts = facts


def _set_look(recording: Recording, look: Observation) -> None:
    tasks = range(len(look.tasks))
    # The page uses these as positions.
    if any(edge.producer not in tasks or edge.consumer not in tasks for edge in look.edges):
        return
    if [task.index for task in look.tasks] != list(tasks):
        return
    recording.look = look


_TAKERS: dict[str, tuple[Any, Callable[[Recording, Any], None]]] = {
    "facts": (JobFacts, _set_facts),
    "look": (Observation, _set_look),
    "point": (Point, lambda recording, point: recording.points.append(point)),
    "event": (Event, lambda recording, event: recording.events.append(event)),
    "checkpoint": (
        CheckpointObserved,
        lambda recording, checkpoint: recording.checkpoints.append(checkpoint),
    ),
}
