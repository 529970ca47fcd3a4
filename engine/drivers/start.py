"""The start of a run: every step on storage before its coordinator begins, in the only safe order.

1. Find the checkpoint. If the run claims it, a file beside it names the claiming job, and a second
   job is refused. An epoch in the other job's folder then fences the driver there. A savepoint
   shares no files, so its job may go on.
2. Claim an epoch of the job: an older driver completes no further checkpoint.
3. Find the checkpoint again, since the older driver may have completed one in between.
4. Link the claimed checkpoint in the job's folder. From now on "latest" finds it while no newer
   checkpoint is complete, and every later driver retains and releases it.
5. Collect checkpoints of earlier runs.

A driver that dies between 1 and 4 leaves the file: the same command goes on, and another job is
told of the claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.recovery import catalog, claims, links
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
            place=self.restore.place,
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
        directory.store, directory.job, restore.own, restore.checkpoint_next, restore.link
    )
    return Start(epoch, restore, earlier)


def acquire_claim(restore: Restore, directory: CheckpointDirectory) -> None:
    """Claim the checkpoint in its own folder, if the run claims one.

    Raises: UserError when another job has it, or the folder cannot be written; StorageUnreachable.
    """
    link = restore.link
    if link is None or not link.claimed or directory.store is None:
        return
    try:
        there = directory.at(link.directory)
        _acquire(there, link, directory.claimer)
        own = not link.directory and job_folder(link.job) == job_folder(directory.job)
        if not link.savepoint and not own:
            catalog.claim_epoch(there, link.job)
        _check_there(there, link)
    except claims.AlreadyClaimed as error:
        raise UserError(f"{link} cannot be claimed: {error}; leave claim out") from error
    except StoreError as error:
        raise StorageUnreachable(f"{link} cannot be claimed: {error}") from error


def _acquire(store: Store, link: links.CheckpointLink, claimer: claims.Claimer) -> None:
    try:
        claims.acquire(store, link.job, link.checkpoint, link.kind, claimer)
    except StoreRejected as error:
        raise UserError(
            f"{link} cannot be claimed, since its folder cannot be written ({error});"
            " leave claim out"
        ) from error


def _check_there(store: Store, link: links.CheckpointLink) -> None:
    """Check that the other driver was fenced before it subsumed the checkpoint.

    Raises: UserError, StoreError.
    """
    try:
        store.get(metadata_path(link.job, link.checkpoint, link.kind), 0, 1)
    except NotFound:
        store.delete(claimed_path(link.job, link.checkpoint, link.kind))
        raise UserError(
            f"{link} was subsumed by its own job before it could be claimed;"
            " that job has been ended: restore its newest"
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
    """Link the claimed checkpoint. Raises: StorageUnreachable."""
    store, job = directory.store, directory.job
    if store is None:
        return
    try:
        if restore.claim is not None:
            links.write(store, job, restore.claim)
    except AlreadyExists as error:
        reason = f"another driver of job {job!r} claims something too: {error}"
        raise StorageUnreachable(reason) from error
    except StoreError as error:
        raise StorageUnreachable(f"the claim could not be noted: {error}") from error
