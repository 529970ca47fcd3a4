"""Rows of `headrace checkpoints list|show|verify`, ready for JSON lines or a table.

Keys are part of the command line's promise: later versions only add keys. Times have their unit in
the key, durations in `_ms` three decimals; the ISO time beside `created_ms` is for people. Nothing
here writes to the storage, makes its directory or prints.

Exit codes follow from the result: 3 if `has_problem` of any row, 2 for UserError, 4 for
StorageUnreachable.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.recovery.catalog import (
    WrongJob,
    belongs,
    complete_checkpoints,
    history,
    incomplete_checkpoints,
    load,
    may_count,
    verify,
)
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.lost import lost
from headrace.recovery.metadata import CheckpointMetadata, Hold, SubtaskSnapshot
from headrace.recovery.sizes import held_on, sizes_of, state_bytes, stored_by
from headrace.recovery.store import NotFound, Store

from ..contract.errors import UserError
from ..contract.numbers import milliseconds
from ..inspection.directory import answers, chosen_jobs, complete_number, single_job
from ..storage.checkpoint_storage import FsspecStore

#: Sides of in-flight data: before the receiver, in the sender's queue, left of an earlier attempt.
SIDES = ("input", "output", "replay")

#: One row: stable keys, values that JSON can hold.
Row = dict[str, Any]


def listing(url: str, job: str | None = None) -> list[Row]:
    """List the checkpoints under `url`, of one job or of all: by job, newest first.

    Keys: job, checkpoint, status (complete, incomplete or damaged), kind (checkpoint or savepoint),
    mode, epoch, created_ms, created, duration_ns, duration_ms, state_bytes (held),
    state_written_bytes, state_referenced_bytes (in shared files of earlier checkpoints), state_rows
    (of tables; databases do not count theirs), inflight_records, inflight_bytes (held),
    inflight_written_bytes, inflight_referenced_bytes (in files of earlier checkpoints), files
    (written by it), subtasks, problem. What is not known is None. Raises: UserError,
    StorageUnreachable.
    """
    with answers(url):
        store = FsspecStore(url)
        rows: list[Row] = []
        for name in chosen_jobs(store, url, job):
            numbers = [(number, True) for number in complete_checkpoints(store, name)]
            numbers += [(number, False) for number in incomplete_checkpoints(store, name)]
            for number, is_complete in sorted(numbers, reverse=True):
                rows.append(_row(store, name, number, is_complete))
        return rows


def details(url: str, job: str | None, number: int | None) -> Row:
    """Show one checkpoint, the newest complete one unless `number` says which: the keys of
    `listing` and, under `metadata`, all that its file says (None if damaged).

    Under `by_subtask` is a row a subtask: task, name, subtask, finished, end_to_end_ms,
    start_delay_ms, alignment_ms, sync_ms, async_ms, state_bytes, for each side of its channels
    input_records, input_bytes, output_records, output_bytes, replay_records, replay_bytes, then
    inflight_written_bytes, inflight_referenced_bytes, and what its cut waited for: held_by,
    held_for, held_ms of the longest wait (None: of none), and all of them under `holds`. Under
    `by_task` is the same by task: the longest times and waits, the sums of the rest. Both are empty
    if the checkpoint is damaged. `job` may be None if the directory holds one job only. Raises:
    UserError, StorageUnreachable.
    """
    with answers(url):
        store = FsspecStore(url)
        name = single_job(store, url, job)
        number = complete_number(store, url, name, number)
        row = _row(store, name, number, True)
        row |= {"by_task": [], "by_subtask": [], "metadata": None}
        with suppress(CorruptMetadata, UnsupportedVersion, WrongJob):
            metadata = load(store, name, number)
            row["by_task"] = [_task(metadata, task) for task in range(len(metadata.tasks))]
            row["by_subtask"] = [_subtask(metadata, subtask) for subtask in metadata.subtasks]
            row["metadata"] = msgspec.to_builtins(metadata)
        return row


def verification(url: str, job: str | None = None, number: int | None = None) -> list[Row]:
    """Read and check every byte that checkpoints refer to: one, or all of a job, or all of all
    jobs.

    Keys: job, checkpoint, status (valid, damaged, lost: its metadata is gone, or passed over:
    damaged, and no part of the history of a later run, which deletes it in time), problems (a list
    of sentences).
    Raises: UserError, StorageUnreachable.
    """
    with answers(url):
        store = FsspecStore(url)
        if number is not None:
            name = single_job(store, url, job)
            complete_number(store, url, name, number)
            return [_verified(store, name, number)]
        names = chosen_jobs(store, url, job)
        if not names:
            raise UserError(f"checkpoint directory {url} holds no checkpoints")
        return [row for name in names for row in _verified_job(store, name)]


def has_problem(rows: Sequence[Row]) -> bool:
    """Tell whether any row reports damage, for exit code 3.

    An incomplete checkpoint is no damage: it may be running.
    """
    return any(row["status"] in ("damaged", "lost") for row in rows)


def _row(store: Store, job: str, number: int, is_complete: bool) -> Row:
    row: Row = {
        "job": job,
        "checkpoint": number,
        "status": "complete" if is_complete else "incomplete",
        "kind": None,
        "mode": None,
        "epoch": None,
        "created_ms": None,
        "created": None,
        "duration_ns": None,
        "duration_ms": None,
        "state_bytes": None,
        "state_written_bytes": None,
        "state_referenced_bytes": None,
        "state_rows": None,
        "inflight_records": None,
        "inflight_bytes": None,
        "inflight_written_bytes": None,
        "inflight_referenced_bytes": None,
        "files": None,
        "subtasks": None,
        "problem": None,
    }
    if not is_complete:
        return row
    try:
        row |= _summary(load(store, job, number))
    except (CorruptMetadata, UnsupportedVersion, WrongJob) as error:
        row |= {"status": "damaged", "problem": str(error)}
    except NotFound:
        # Deleted since it was listed.
        row["status"] = "incomplete"
    return row


def _summary(metadata: CheckpointMetadata) -> Row:
    sizes = sizes_of(metadata)
    return {
        "job": metadata.job,
        "kind": "savepoint" if metadata.savepoint else "checkpoint",
        "mode": metadata.mode,
        "epoch": metadata.epoch,
        "created_ms": metadata.created_ms,
        "created": _iso(metadata.created_ms),
        "duration_ns": metadata.duration_ns,
        "duration_ms": milliseconds(metadata.duration_ns),
        "state_bytes": sizes.state_bytes,
        "state_written_bytes": sizes.state_written_bytes,
        "state_referenced_bytes": sizes.state_referenced_bytes,
        "state_rows": sum(h.rows for subtask in metadata.subtasks for h in subtask.states),
        "inflight_records": sizes.inflight_records,
        "inflight_bytes": sizes.inflight_bytes,
        "inflight_written_bytes": sizes.inflight_written_bytes,
        "inflight_referenced_bytes": sizes.inflight_referenced_bytes,
        "files": sizes.files,
        "subtasks": len(metadata.subtasks),
    }


def _subtask(metadata: CheckpointMetadata, subtask: SubtaskSnapshot) -> Row:
    written_bytes, referenced_bytes = stored_by(subtask, metadata.checkpoint)
    return {
        "task": subtask.task,
        "name": metadata.tasks[subtask.task].name,
        "subtask": subtask.index,
        "finished": subtask.finished,
        "end_to_end_ms": milliseconds(subtask.end_to_end_ns),
        "start_delay_ms": milliseconds(subtask.start_delay_ns),
        "alignment_ms": milliseconds(subtask.alignment_ns),
        "sync_ms": milliseconds(subtask.sync_ns),
        "async_ms": milliseconds(subtask.async_ns),
        "state_bytes": state_bytes(subtask),
        **_by_side(subtask),
        "inflight_written_bytes": written_bytes,
        "inflight_referenced_bytes": referenced_bytes,
        **_held_by([_hold(hold) for hold in subtask.holds]),
    }


def _hold(hold: Hold) -> Row:
    return {"by": hold.by, "for": hold.kind, "held_ms": milliseconds(hold.held_ns)}


def _held_by(holds: list[Row]) -> Row:
    longest = max(holds, key=lambda hold: hold["held_ms"], default=None)
    return {
        "held_by": longest and longest["by"],
        "held_for": longest and longest["for"],
        "held_ms": longest["held_ms"] if longest else 0.0,
        "holds": holds,
    }


def _by_side(subtask: SubtaskSnapshot) -> Row:
    row: Row = {}
    for side in SIDES:
        held = held_on(subtask, side)
        row |= {f"{side}_records": held.records, f"{side}_bytes": held.size_bytes}
    return row


def _task(metadata: CheckpointMetadata, task: int) -> Row:
    rows = [_subtask(metadata, subtask) for subtask in metadata.subtasks if subtask.task == task]
    row: Row = {"task": task, "name": metadata.tasks[task].name, "subtasks": len(rows)}
    row["finished"] = all(r["finished"] for r in rows)
    for key, value in rows[0].items():
        if isinstance(value, float):
            row[key] = max(r[key] for r in rows)
        elif key.endswith(("_records", "_bytes")):
            row[key] = sum(r[key] for r in rows)
    return row | _held_by(_longest_by_name([hold for r in rows for hold in r["holds"]]))


def _longest_by_name(holds: list[Row]) -> list[Row]:
    """The longest hold of each kind and name, longest first."""
    longest: dict[tuple[str, str], Row] = {}
    for hold in sorted(holds, key=lambda hold: -hold["held_ms"]):
        longest.setdefault((hold["by"], hold["for"]), hold)
    return list(longest.values())


def _iso(milliseconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # A clock that stood beyond the year 9999; the number is shown as it is.
        return None


def _verified_job(store: Store, job: str) -> list[Row]:
    """Verify all checkpoints of a job, newest first, and tell of those without metadata."""
    rows = [_passed_over(store, _verified(store, job, n)) for n in complete_checkpoints(store, job)]
    with suppress(UnsupportedVersion, WrongJob):  # told already
        for number, reason in lost(store, job):
            row: Row = {"job": job, "checkpoint": number, "status": "lost", "problems": [reason]}
            rows.append(row)
    return sorted(rows, key=lambda row: -row["checkpoint"])


def _verified(store: Store, job: str, number: int) -> Row:
    try:
        problems = verify(store, job, number)
    except (UnsupportedVersion, WrongJob) as error:
        problems = [str(error)]
    return {
        "job": job,
        "checkpoint": number,
        "status": "damaged" if problems else "valid",
        "problems": problems,
    }


def _passed_over(store: Store, row: Row) -> Row:
    """Return the row of a verified checkpoint, told apart if a later run has passed over it."""
    job, number = row["job"], row["checkpoint"]
    if row["status"] == "damaged" and not _counts(store, job, number):
        return row | {"status": "passed over"}
    return row


def _counts(store: Store, job: str, number: int) -> bool:
    past = history(store, job)
    try:
        return belongs(load(store, job, number), past)
    except (CorruptMetadata, NotFound):
        return may_count(store, job, number, past)
    except (UnsupportedVersion, WrongJob):
        return True
