"""What `headrace checkpoints list|show|verify` finds out: plain rows, ready for JSON lines or a table.

Keys are part of the command line's promise: they are only ever added. Times are integers with their unit in the key; the ISO
time beside `created_ms` is for people. Nothing here writes to the storage, makes its directory or prints.

Exit codes follow from what is returned or raised: 3 if `has_problem` of any row, 2 for UserError, 4 for StorageUnreachable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.recovery.catalog import (
    WrongJob,
    complete_checkpoints,
    incomplete_checkpoints,
    jobs,
    load,
    verify,
)
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.layout import job_folder
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store, StoreRejected, StoreUncertain

from ..api.errors import StorageUnreachable, UserError
from ..runtime.storage import FsspecStore

#: One row: stable keys, values that JSON can hold.
Row = dict[str, Any]


def listing(url: str, job: str | None = None) -> list[Row]:
    """List the checkpoints under `url`, of one job or of all: by job, newest first.

    Keys: job, checkpoint, status (complete, incomplete or damaged), kind (checkpoint or savepoint), mode, epoch,
    created_ms, created, duration_ns, state_bytes, state_rows, subtasks, problem. What is not known is None.
    Raises: UserError, StorageUnreachable.
    """
    with _answers(url):
        store = FsspecStore(url)
        rows: list[Row] = []
        for name in _chosen_jobs(store, url, job):
            numbers = [(number, True) for number in complete_checkpoints(store, name)]
            numbers += [(number, False) for number in incomplete_checkpoints(store, name)]
            for number, is_complete in sorted(numbers, reverse=True):
                rows.append(_row(store, name, number, is_complete))
        return rows


def details(url: str, job: str | None, number: int) -> Row:
    """Show one checkpoint: the keys of `listing` and, under `metadata`, all that its file says (None if damaged).

    `job` may be None if the directory holds one job only. Raises: UserError, StorageUnreachable.
    """
    with _answers(url):
        store = FsspecStore(url)
        name = _single_job(store, url, job)
        _require_complete(store, url, name, number)
        row = _row(store, name, number, True)
        try:
            row["metadata"] = msgspec.to_builtins(load(store, name, number))
        except (CorruptMetadata, UnsupportedVersion, WrongJob):
            row["metadata"] = None
        return row


def verification(url: str, job: str | None = None, number: int | None = None) -> list[Row]:
    """Read and check every byte that checkpoints refer to: one, or all of a job, or all of all jobs.

    Keys: job, checkpoint, status (valid or damaged), problems (a list of sentences).
    Raises: UserError, StorageUnreachable.
    """
    with _answers(url):
        store = FsspecStore(url)
        if number is not None:
            name = _single_job(store, url, job)
            _require_complete(store, url, name, number)
            return [_verified(store, name, number)]
        return [
            _verified(store, name, found)
            for name in _chosen_jobs(store, url, job)
            for found in complete_checkpoints(store, name)
        ]


def has_problem(rows: Sequence[Row]) -> bool:
    """Tell whether any row reports damage, for exit code 3. An incomplete checkpoint is none: it may be running."""
    return any(row["status"] == "damaged" for row in rows)


@contextmanager
def _answers(url: str) -> Iterator[None]:
    """Turn storage errors into those that the command line ends with."""
    try:
        yield
    except StoreUncertain as error:
        message = f"checkpoint directory {url} cannot be reached: {error.reason}"
        raise StorageUnreachable(message) from error
    except StoreRejected as error:
        raise UserError(f"checkpoint directory {url} cannot be read: {error}") from error


def _chosen_jobs(store: Store, url: str, job: str | None) -> list[str]:
    found = jobs(store)
    if job is None:
        return found
    folder = job_folder(job) if job else ""
    if folder not in found:
        held = f"it holds {', '.join(found)}" if found else "it holds no checkpoints"
        raise UserError(f"no job {job!r} in checkpoint directory {url}: {held}")
    return [folder]


def _single_job(store: Store, url: str, job: str | None) -> str:
    found = _chosen_jobs(store, url, job)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(f"checkpoint directory {url} holds no checkpoints")
    raise UserError(
        f"checkpoint directory {url} holds several jobs; name one of {', '.join(found)}"
    )


def _require_complete(store: Store, url: str, job: str, number: int) -> None:
    complete = complete_checkpoints(store, job)
    if number not in complete:
        held = ", ".join(map(str, complete)) or "none"
        raise UserError(f"job {job!r} in {url} has no complete checkpoint {number}; it has {held}")


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
        "state_bytes": None,
        "state_rows": None,
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
    handles = [handle for subtask in metadata.subtasks for handle in subtask.states]
    return {
        "job": metadata.job,
        "kind": "savepoint" if metadata.savepoint else "checkpoint",
        "mode": metadata.mode,
        "epoch": metadata.epoch,
        "created_ms": metadata.created_ms,
        "created": _iso(metadata.created_ms),
        "duration_ns": metadata.duration_ns,
        "state_bytes": sum(handle.length for handle in handles),
        "state_rows": sum(handle.rows for handle in handles),
        "subtasks": len(metadata.subtasks),
    }


def _iso(milliseconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # A clock that stood beyond the year 9999; the number is shown as it is.
        return None


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
