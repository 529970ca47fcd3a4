"""Print the results of `headrace checkpoints` and `headrace bench`: objects for machines, a table
for people.

Everything here is a result, so it goes to standard output. The functions return the exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..contract.numbers import seconds, size
from ..contract.places import redacted
from .checkpoints import SIDES, Row, has_problem
from .reporter import print_object
from .streams import give

_PROBLEM = 3
_PHASES = ("end_to_end", "start_delay", "alignment", "sync", "async")
_TIMES = ("task", "subtask", "end to end", "start delay", *_PHASES[2:])
_AMOUNTS = ("task", "subtask", "state", *SIDES, "written", "referenced")
#: Columns of a line that no terminal cuts.
_PIPE_WIDTH = 100_000


def show_listing(rows: Sequence[Row], directory: str, *, as_json: bool) -> int:
    """Print a list of checkpoints; 3 if one is damaged."""
    if as_json:
        _objects(rows)
    elif not rows:
        give(f"no checkpoints in {redacted(directory)}")
    else:
        columns = ("job", "number", "status", "mode", "created (UTC)", "took", "state", "in flight")
        print_table(columns, (_listed(row) for row in rows))
        _problems(
            f"{row['job']}/chk-{row['checkpoint']}: {row['problem']}"
            for row in rows
            if row["problem"]
        )
    return _PROBLEM if has_problem(rows) else 0


def show_details(row: Row, *, as_json: bool) -> int:
    """Print one checkpoint with all its content; 3 if it is damaged."""
    if as_json:
        print_object(row)
        return _PROBLEM if has_problem([row]) else 0
    for key, value in row.items():
        if key not in ("metadata", "by_task", "by_subtask") and value is not None:
            give(f"{key}: {value}")
    metadata = row["metadata"]
    for heading, places in (("by task", row["by_task"]), ("by subtask", row["by_subtask"])):
        if places:
            give(f"\n{heading}, times in ms")
            print_table(_TIMES, map(_times, places))
            give(f"\n{heading}, size of state, in-flight records and their size")
            print_table(_AMOUNTS, map(_amounts, places))
    _held(row["by_task"])
    if metadata is not None:
        names = {index: task["name"] for index, task in enumerate(metadata["tasks"])}
        give("\nstate")
        print_table(
            ("task", "subtask", "finished", "operator", "state", "rows", "size"),
            (part for subtask in metadata["subtasks"] for part in _states(subtask, names)),
        )
    return _PROBLEM if has_problem([row]) else 0


def show_verification(rows: Sequence[Row], directory: str, *, as_json: bool) -> int:
    """Print the verified checkpoints; 3 if a checkpoint is damaged."""
    if as_json:
        _objects(rows)
    elif not rows:
        give(f"no complete checkpoints in {redacted(directory)}")
    else:
        print_table(
            ("job", "checkpoint", "status"),
            ((row["job"], str(row["checkpoint"]), row["status"]) for row in rows),
        )
        _problems(
            f"{row['job']}/chk-{row['checkpoint']}: {problem}"
            for row in rows
            for problem in row["problems"]
        )
    return _PROBLEM if has_problem(rows) else 0


def show_measured(found: Mapping[str, Any], *, as_json: bool) -> int:
    """Print a benchmark's result; 3 if it has an answer, and a wrong one."""
    if as_json:
        print_object(found)
    else:
        for key, value in found.items():
            give(f"{key}: {_measured(value)}")
    return 0 if found.get("correct", True) else _PROBLEM


def _measured(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)


def _listed(row: Row) -> tuple[str, ...]:
    return (
        row["job"],
        str(row["checkpoint"]),
        row["status"],
        row["mode"] or "",
        (row["created"] or "")[:19].replace("T", " "),
        "" if row["duration_ns"] is None else seconds(row["duration_ns"]),
        "" if row["state_bytes"] is None else size(row["state_bytes"]),
        "" if row["inflight_bytes"] is None else size(row["inflight_bytes"]),
    )


def _place(row: Row) -> tuple[str, str]:
    """A task as a whole, or one of its subtasks."""
    return row["name"], str(row["subtask"]) if "subtask" in row else f"all {row['subtasks']}"


def _times(row: Row) -> tuple[str, ...]:
    return (*_place(row), *(f"{row[f'{phase}_ms']:g}" for phase in _PHASES))


def _amounts(row: Row) -> tuple[str, ...]:
    return (
        *_place(row),
        size(row["state_bytes"]),
        *(_records(row[f"{side}_records"], row[f"{side}_bytes"]) for side in SIDES),
        size(row["inflight_written_bytes"]),
        size(row["inflight_referenced_bytes"]),
    )


def _held(tasks: Sequence[Row]) -> None:
    """Return what cuts waited for, the longest wait of each task and cause first."""
    holds = [(row["name"], hold) for row in tasks for hold in row["holds"]]
    if holds:
        give("\nwhat its cuts waited for (times in ms)")
        holds.sort(key=lambda named: -named[1]["held_ms"])
        rows = ((name, hold["for"], hold["by"], f"{hold['held_ms']:g}") for name, hold in holds)
        print_table(("task", "waited for", "of", "at most"), rows)


def _records(records: int, size_bytes: int) -> str:
    return f"{records:,} ({size(size_bytes)})" if records else "-"


def _states(subtask: Mapping[str, Any], names: Mapping[int, str]) -> Iterable[tuple[str, ...]]:
    place = (
        names.get(subtask["task"], str(subtask["task"])),
        str(subtask["index"]),
        "yes" if subtask["finished"] else "no",
    )
    for state in subtask["states"]:
        yield (
            *place,
            state["operator"],
            f"{state['state']} ({state['kind']})",
            str(state["rows"]),
            size(state["length"]),
        )
    for database in subtask["databases"]:
        states = ", ".join(schema["state"] for schema in database["schemas"])
        yield (
            *place,
            database["operator"],
            f"{states} ({database['format']})",
            "",
            size(sum(file["length"] for file in (*database["shared"], *database["own"]))),
        )
    if not subtask["states"] and not subtask["databases"]:
        yield (*place, "", "", "", "")


def _objects(rows: Iterable[Row]) -> None:
    for row in rows:
        print_object(row)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns under their names, within the terminal's width; in a pipe a row is a line."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(markup=False, highlight=False, width=width).print(table)


def _problems(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        give(sentence)
