"""Find the job and the checkpoint that a reader of a directory means.

Nothing here writes to the storage or makes its directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.recovery.catalog import (
    WrongJob,
    complete_checkpoints,
    jobs,
    load,
)
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.layout import job_folder
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store, StoreRejected, StoreUncertain

from ..contract.errors import StorageUnreachable, UserError
from ..storage.checkpoint_storage import FsspecStore

_CHECKPOINT = re.compile(r"(?P<root>.+)/(?P<job>[^/]+)/(?:chk|sav)-(?P<number>\d+)/?")


@dataclass(frozen=True, slots=True)
class Opened:
    """A complete checkpoint and its store (which pickles as its URL)."""

    store: FsspecStore
    job: str
    metadata: CheckpointMetadata


@contextmanager
def answers(url: str) -> Iterator[None]:
    """Turn storage errors into errors for a user. Raises: UserError, StorageUnreachable."""
    try:
        yield
    except StoreUncertain as error:
        message = f"checkpoint directory {url} cannot be reached: {error.reason}"
        raise StorageUnreachable(message) from error
    except StoreRejected as error:
        raise UserError(f"checkpoint directory {url} cannot be read: {error}") from error


def chosen_jobs(store: Store, url: str, job: str | None) -> list[str]:
    """Return the folder of `job`, or of all jobs. Raises: UserError if there is no such job."""
    found = jobs(store)
    if job is None:
        return found
    folder = job_folder(job) if job else ""
    if folder not in found:
        held = f"it holds {', '.join(found)}" if found else "it holds no checkpoints"
        raise UserError(f"no job {job!r} in checkpoint directory {url}: {held}")
    return [folder]


def single_job(store: Store, url: str, job: str | None) -> str:
    """Return the folder of `job`, or of the only job.

    Raises: UserError if there are none or several.
    """
    found = chosen_jobs(store, url, job)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(f"checkpoint directory {url} holds no checkpoints")
    raise UserError(
        f"checkpoint directory {url} holds several jobs; name one of {', '.join(found)}"
    )


def complete_number(store: Store, url: str, job: str, number: int | None) -> int:
    """Return `number`, or the newest, of a complete checkpoint.

    Raises: UserError if there is none.
    """
    complete = complete_checkpoints(store, job)
    if number is None and complete:
        return complete[0]
    if number is None or number not in complete:
        held = ", ".join(map(str, complete)) or "none"
        which = "" if number is None else f" {number}"
        raise UserError(f"job {job!r} in {url} has no complete checkpoint{which}; it has {held}")
    return number


def open_checkpoint(url: str, job: str | None = None, number: int | None = None) -> Opened:
    """Find a complete checkpoint or savepoint.

    Args:
        url: a checkpoint directory, or the path of one checkpoint in it (it ends in JOB/chk-N or
            JOB/sav-N).
        job: may be None if the directory holds one job.
        number: None is the newest. A damaged checkpoint is refused, not passed over: the reader
            asked for this one.

    Raises: UserError, StorageUnreachable.
    """
    path = _CHECKPOINT.fullmatch(url)
    if path is not None:
        url, job, number = path["root"], path["job"], int(path["number"])
    with answers(url):
        store = FsspecStore(url)
        name = single_job(store, url, job)
        chosen = complete_number(store, url, name, number)
        try:
            return Opened(store, name, load(store, name, chosen))
        except (CorruptMetadata, UnsupportedVersion, WrongJob) as error:
            raise UserError(f"chk-{chosen} of job {name!r} cannot be read: {error}") from error
        except NotFound:
            raise UserError(f"chk-{chosen} of job {name!r} was deleted just now") from None
