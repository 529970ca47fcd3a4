"""Restores that claim: a checkpoint of another folder becomes the job's own, and is deleted like its own (Flink's claim mode CLAIM).

In this order, so that a driver that dies on the way leaves nothing that nobody knows of:

1. `stake`: a file beside the checkpoint names the job that claims it; a second job is refused. Then an epoch is claimed in the other job's
   folder, so that its driver, if one is alive, completes nothing more. A savepoint shares no files with anybody: its job may go on.
2. The job's own epoch is claimed: an older driver of its own completes nothing more.
3. `record`: the job's folder notes the claim, at the next place of its sequence. From now on the claimed checkpoint counts as the newest of the
   history, "latest" finds it while nothing newer is complete, and every later driver retains it and releases it.

Who dies between 1 and 3 leaves the file: the same command goes on, and whoever else wants the checkpoint is told who has it.
"""

from __future__ import annotations

from headrace.recovery import catalog, claims, elsewhere
from headrace.recovery.layout import claimed_path, job_folder, metadata_path
from headrace.recovery.store import AlreadyExists, NotFound, Store, StoreError, StoreRejected

from ..contract.errors import StorageUnreachable, UserError
from ..contract.places import absolute
from ..storage.checkpoint_storage import open_store
from .checkpoint_directory import Open
from .restore import Restore


def claimer_of(directory: str, job: str) -> claims.Claimer:
    """How a job with its checkpoints in `directory` is known where it claims."""
    return claims.Claimer(directory=absolute(directory), job=job)


def stake(
    restore: Restore, store: Store | None, job: str, directory: str, open_: Open = open_store
) -> None:
    """Claim what the run starts from, if it is to be claimed, where it lies.

    Args:
        store: the job's own; `directory` is its URL.

    Raises: UserError when it is another's, or its folder cannot be written; StorageUnreachable. Nothing has begun then.
    """
    place = restore.place
    if place is None or not place.claimed or store is None:
        return
    try:
        there = open_(place.directory) if place.directory else store
        claimer = claimer_of(directory, job)
        _stake(there, place, claimer)
        own = not place.directory and job_folder(place.job) == job_folder(job)
        if not place.savepoint and not own:
            catalog.claim_epoch(there, place.job)
        _check_there(there, place)
    except claims.AlreadyClaimed as error:
        raise UserError(f"{place} cannot be claimed: {error}; leave claim out") from error
    except StoreError as error:
        raise StorageUnreachable(f"{place} cannot be claimed: {error}") from error


def _stake(store: Store, place: elsewhere.Elsewhere, claimer: claims.Claimer) -> None:
    try:
        claims.stake(store, place.job, place.checkpoint, place.kind, claimer)
    except StoreRejected as error:
        raise UserError(
            f"{place} cannot be claimed, since its folder cannot be written ({error}); leave claim out"
        ) from error


def _check_there(store: Store, place: elsewhere.Elsewhere) -> None:
    """The driver of the other job may have subsumed it until it was fenced; then nothing is claimed. Raises: UserError, StoreError."""
    try:
        store.get(metadata_path(place.job, place.checkpoint, place.kind), 0, 1)
    except NotFound:
        store.delete(claimed_path(place.job, place.checkpoint, place.kind))
        raise UserError(
            f"{place} was subsumed by its own job before it could be claimed; that job has been ended: restore its newest"
        ) from None


def record(restore: Restore, store: Store | None, job: str) -> None:
    """Note in the job's folder what it has claimed, and forget places that stand for nothing. Call it when an epoch is claimed.

    Raises: StorageUnreachable.
    """
    if store is None:
        return
    try:
        for number in restore.unfulfilled:
            elsewhere.forget(store, job, number)
        if restore.place is not None and restore.place.claimed:
            elsewhere.note(store, job, restore.place)
    except AlreadyExists as error:
        reason = f"another driver of job {job!r} claims something too: {error}"
        raise StorageUnreachable(reason) from error
    except StoreError as error:
        raise StorageUnreachable(f"the claim could not be noted: {error}") from error
