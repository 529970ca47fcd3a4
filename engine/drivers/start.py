"""The start of a run: every step on storage before its coordinator begins, in the one order that is safe.

1. The checkpoint is looked for. If the run claims it, a file beside it names the claiming job; a second job is refused. An epoch in the other
   job's folder then fences the driver there. A savepoint shares no files, so its job may go on.
2. The run claims an epoch of its own: an older driver of the job completes nothing more.
3. The checkpoint is looked for again, since that driver may have completed one in between.
4. The claim is recorded in the job's folder. From now on "latest" finds the claimed checkpoint while nothing newer is complete, and every
   later driver retains and releases it.
5. Checkpoints that earlier runs left are collected.

A driver that dies between 1 and 4 leaves the file: the same command goes on, and another job is told of the claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.recovery import catalog, claims, elsewhere
from headrace.recovery.layout import claimed_path, job_folder, metadata_path
from headrace.recovery.store import AlreadyExists, NotFound, Store, StoreError, StoreRejected

from ..contract.errors import StorageUnreachable, UserError
from ..contract.execution import ExecutionPlan
from ..contract.launcher import slots_of_worker
from ..coordinator.coordinator import Adapt, Assign, Coordinator, as_it_is
from ..coordinator.earlier_runs import EarlierRuns, find_earlier_runs
from ..coordinator.rules import CoordinatorRules
from .checkpoint_directory import CheckpointDirectory
from .restore import Restore


@dataclass(frozen=True, slots=True)
class Start:
    """The outcome of the steps.

    Attributes:
        epoch: the run's first.
        restore: where the run starts.
        earlier: checkpoints of earlier runs.
    """

    epoch: int
    restore: Restore
    earlier: EarlierRuns

    def coordinator(
        self,
        plan: ExecutionPlan,
        workers: int,
        rules: CoordinatorRules,
        assign: Assign,
        adapt: Adapt = as_it_is,
    ) -> Coordinator:
        """Make the run's coordinator; slots are spread over the workers."""
        held = [slots_of_worker(w, workers=workers, slots=plan.slots) for w in range(workers)]
        return Coordinator(
            plan,
            [list(slots) for slots in held],
            rules,
            restore=self.restore.metadata,
            origin=self.restore.origin,
            claim=self.restore.claim,
            checkpoint_next=self.restore.checkpoint_next,
            assign=assign,
            epoch=self.epoch,
            earlier=self.earlier,
            adapt=adapt,
        )


def prepare(directory: CheckpointDirectory, find: Callable[[], Restore]) -> Start:
    """Take all steps. `find`: looks for the checkpoint to start from.

    Raises: UserError, StorageUnreachable; the same start may be tried again.
    """
    acquire_claim(find(), directory)
    epoch = _claim_epoch(directory)
    restore = find()
    _record(restore, directory)
    earlier = find_earlier_runs(
        directory.store, directory.job, restore.own, restore.checkpoint_next, restore.place
    )
    return Start(epoch, restore, earlier)


def acquire_claim(restore: Restore, directory: CheckpointDirectory) -> None:
    """Claim the checkpoint in its own folder, if the run claims one.

    Raises: UserError when another job has claimed it, or its folder cannot be written; StorageUnreachable.
    """
    place = restore.place
    if place is None or not place.claimed or directory.store is None:
        return
    try:
        there = directory.at(place.directory)
        _acquire(there, place, directory.claimer)
        own = not place.directory and job_folder(place.job) == job_folder(directory.job)
        if not place.savepoint and not own:
            catalog.claim_epoch(there, place.job)
        _check_there(there, place)
    except claims.AlreadyClaimed as error:
        raise UserError(f"{place} cannot be claimed: {error}; leave claim out") from error
    except StoreError as error:
        raise StorageUnreachable(f"{place} cannot be claimed: {error}") from error


def _acquire(store: Store, place: elsewhere.Elsewhere, claimer: claims.Claimer) -> None:
    try:
        claims.stake(store, place.job, place.checkpoint, place.kind, claimer)
    except StoreRejected as error:
        raise UserError(
            f"{place} cannot be claimed, since its folder cannot be written ({error}); leave claim out"
        ) from error


def _check_there(store: Store, place: elsewhere.Elsewhere) -> None:
    """See that the other driver has not subsumed it before it was fenced. Raises: UserError, StoreError."""
    try:
        store.get(metadata_path(place.job, place.checkpoint, place.kind), 0, 1)
    except NotFound:
        store.delete(claimed_path(place.job, place.checkpoint, place.kind))
        raise UserError(
            f"{place} was subsumed by its own job before it could be claimed; that job has been ended: restore its newest"
        ) from None


def _claim_epoch(directory: CheckpointDirectory) -> int:
    if directory.store is None:
        return 1
    try:
        return catalog.claim_epoch(directory.store, directory.job)
    except StoreError as error:
        raise StorageUnreachable(
            f"an epoch of job {directory.job!r} could not be claimed: {error}"
        ) from error


def _record(restore: Restore, directory: CheckpointDirectory) -> None:
    """Write the record of the claim, and delete records whose savepoints never came. Raises: StorageUnreachable."""
    store, job = directory.store, directory.job
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
