"""Which checkpoint a run starts from, and the plan in the terms of `recovery/assignment.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headrace.recovery import catalog
from headrace.recovery.assignment import NewTask, claimed_transactions, unclaimed
from headrace.recovery.catalog import NoValidCheckpoint, WrongJob
from headrace.recovery.claims import AlreadyClaimed, Claimer, check_unclaimed, is_claimed
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.layout import NUMBER_MAX, CheckpointKind, job_folder, link_path
from headrace.recovery.links import CheckpointLink, read_all
from headrace.recovery.links import load as load_linked
from headrace.recovery.lost import displaced, lost_start
from headrace.recovery.metadata import CheckpointMetadata, TaskInfo
from headrace.recovery.redistribution import NewEdge
from headrace.recovery.renaming import NoSuchName, renamed
from headrace.recovery.store import NotFound, Store, StoreError

from ..contract.errors import StorageUnreachable, UserError
from ..contract.execution import ExecutionPlan
from ..contract.places import absolute
from ..contract.suggestion import did_you_mean
from ..storage.checkpoint_storage import open_store
from ..worker.wiring import channels_to
from .checkpoint_directory import Open

_CHECKPOINT_PATH = re.compile(r"(?P<root>.+)/(?P<job>[^/]+)/(?:chk|sav)-(?P<number>\d+)/?")


@dataclass(frozen=True, slots=True)
class Restore:
    """Where a run starts.

    Attributes:
        metadata: the checkpoint; None: from nothing.
        origin: URL of its directory; empty: the checkpoint is the job's own, to build upon and to
            delete.
        checkpoint_next: number of the run's first checkpoint, above all in the job's folder.
        warnings: about the choice, for the user, one sentence each.
        link: link of the job's history to the checkpoint, if there is one.
    """

    metadata: CheckpointMetadata | None
    origin: str
    checkpoint_next: int
    warnings: tuple[str, ...] = ()
    link: CheckpointLink | None = None

    @property
    def claim(self) -> CheckpointLink | None:
        """The link, if the checkpoint is claimed."""
        return self.link if self.link is not None and self.link.claimed else None

    @property
    def own(self) -> CheckpointMetadata | None:
        """The checkpoint, if it is one of the job's own."""
        return None if self.origin else self.metadata

    @property
    def place(self) -> tuple[int, int]:
        """Number in the job's history, and the epoch that completed it; 0: none."""
        if self.link is not None:
            return _place_of(self.link, self.metadata)
        return (0, 0) if self.own is None else (self.own.checkpoint, self.own.epoch)


def resolve(
    store: Store | None,
    job: str,
    restore: str | int | None,
    directory: str = "",
    *,
    claim: bool = False,
    open_: Open = open_store,
) -> Restore:
    """Find the checkpoint that `restore` ("auto", "latest", a number, or a path that ends in
    JOB/chk-N) names; None: begin anew.

    Args:
        directory: URL of `store`. A savepoint in it has another owner, like everything in other
            directories.
        claim: a checkpoint of another owner is to become the job's own.
        open_: opens other directories.

    Raises UserError: there is no such complete checkpoint, it is damaged, another job has claimed
    it, or the folder belongs to another job; StorageUnreachable.
    """
    try:
        following = 1 if store is None else catalog.next_checkpoint_number(store, job)
        if store is not None:
            _check_owner(store, job)
            _check_numbers(store, job, following)
        if restore is None:
            return Restore(None, "", following)
        found = _find(store, job, restore, open_)
        if found.metadata is None:
            return Restore(None, "", following)
        metadata = found.metadata
        following = max(following, metadata.checkpoint + 1)
        origin = found.origin
        if found.link is not None or metadata.savepoint:
            origin = origin or directory
        result = Restore(metadata, origin, following, _warnings(found), found.link)
        if claim:
            result = _claimed(result, store, job, directory)
        if store is not None:
            _check_unclaimed(result, store, job, directory)
        return result
    except NoValidCheckpoint as error:
        raise UserError(f"restore={restore!r}: {error}; fresh=True begins anew") from error
    except (CorruptMetadata, UnsupportedVersion, WrongJob) as error:
        raise UserError(f"restore={restore!r}: {error}") from error
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error


def _warnings(found: _Found) -> tuple[str, ...]:
    metadata = found.metadata
    assert metadata is not None, "something is restored"
    kind = "sav-" if metadata.savepoint else "chk-"
    used = f"{kind}{metadata.checkpoint}"
    return tuple(_passed_over(name, reason, used) for name, reason in found.refused)


def _passed_over(name: str, reason: str, used: str) -> str:
    return (
        f"{name} cannot be restored ({reason}); {used} is used, so what was committed to sinks"
        " after it will be written once more"
    )


def told_of_displaced(restore: Restore, store: Store | None, job: str) -> Restore:
    """Warn of newer checkpoints that have something else in their metadata's place.

    Raises: UserError if the run would begin anew instead; StorageUnreachable.
    """
    if store is None:
        return restore
    try:
        found = displaced(store, job)
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    if restore.metadata is None and found:
        raise UserError(
            f"chk-{found[0].number} cannot be restored ({found[0].reason}), and job {job!r} has no"
            " complete checkpoint; begin anew with fresh=True to start afresh"
        )
    number = 0 if restore.metadata is None else restore.metadata.checkpoint
    newer = [each for each in found if each.number > number]
    told = [_passed_over(f"chk-{n}", reason, f"chk-{number}") for n, reason in newer]
    return replace(restore, warnings=(*restore.warnings, *told))


def _claimed(restore: Restore, store: Store | None, job: str, directory: str) -> Restore:
    """Claim the checkpoint for the job, unless it is the job's own.

    Raises: UserError, StoreError.
    """
    metadata = restore.metadata
    assert metadata is not None, "something is restored"
    if store is None:
        raise UserError(
            "claim needs a checkpoint directory: without newer checkpoints nothing subsumes what"
            " is claimed"
        )
    if not restore.origin or restore.link is not None:
        return restore
    here = absolute(restore.origin).rstrip("/") == absolute(directory).rstrip("/")
    if here and not metadata.savepoint and job_folder(metadata.job) == job_folder(job):
        return replace(restore, origin="")
    link = CheckpointLink(
        number=restore.checkpoint_next,
        directory="" if here else absolute(restore.origin),
        job=metadata.job,
        checkpoint=metadata.checkpoint,
        savepoint=metadata.savepoint,
        claimed=True,
    )
    # The same command once more goes on with the same claim.
    known = [
        p for p in read_all(store, job)[0] if msgspec.structs.replace(p, number=link.number) == link
    ]
    if known:
        return replace(restore, link=known[-1])
    return replace(restore, link=link, checkpoint_next=link.number + 1)


def _check_unclaimed(restore: Restore, store: Store, job: str, directory: str) -> None:
    """Refuse a checkpoint of the job's own folder that another job has claimed, and will delete.

    Raises: UserError, StoreError.
    """
    metadata = restore.metadata
    assert metadata is not None, "something is restored"
    if restore.origin and restore.origin != directory:
        return
    kind = CheckpointKind.SAVEPOINT if metadata.savepoint else CheckpointKind.CHECKPOINT
    claimer = Claimer(directory=absolute(directory), job=job)
    try:
        check_unclaimed(store, metadata.job, metadata.checkpoint, kind, claimer)
    except AlreadyClaimed as error:
        raise UserError(
            f"{kind.value}-{metadata.checkpoint} cannot be restored: {error}; restore an older one,"
            f" or delete that file if that job will never run"
        ) from error


def _check_numbers(store: Store, job: str, following: int) -> None:
    """Refuse an entry after which no number is left. Raises: UserError, StoreError."""
    highest = {"checkpoint": following - 1, "epoch": catalog.newest_epoch(store, job) or 0}
    for kind, number in highest.items():
        if number >= NUMBER_MAX:
            raise UserError(
                f"the folder {job_folder(job)} in the checkpoint directory holds {kind} {number},"
                " which no run has made: move that entry away"
            )


def _check_owner(store: Store, job: str) -> None:
    """Check that the newest checkpoint in the job's folder is of this job, if it can be read."""
    for number in catalog.complete_checkpoints(store, job)[:1]:
        try:
            catalog.load(store, job, number)
        except (CorruptMetadata, UnsupportedVersion, NotFound):
            return


@dataclass(slots=True)
class _Found:
    """The checkpoint that `restore` names (None: none yet), and its directory; empty: the job's
    own.

    `refused`: (name, reason) of damaged newer ones.
    """

    metadata: CheckpointMetadata | None
    origin: str = ""
    refused: list[tuple[str, str]] = field(default_factory=list)
    link: CheckpointLink | None = None


def _find(store: Store | None, job: str, restore: str | int, open_: Open) -> _Found:
    path = _CHECKPOINT_PATH.fullmatch(restore) if isinstance(restore, str) else None
    if path is not None:
        origin = path["root"]
        return _Found(_load(open_(origin), path["job"], int(path["number"])), origin)
    if store is None and restore == "auto":
        return _Found(None)
    if store is None:
        raise UserError(
            f"restore={restore!r} needs a checkpoint directory; give the job checkpoints=DIR or"
            " the path of a checkpoint"
        )
    if restore in ("auto", "latest"):
        found = _newest(store, job, open_)
        if found.metadata is None and (found.refused or restore == "latest"):
            reasons = "".join(f" ({name}: {reason})" for name, reason in found.refused)
            way = "begin anew with fresh=True" if found.refused else "leave restore out"
            raise UserError(
                f"restore={restore!r}: job {job!r} has no complete checkpoint there{reasons};"
                f" {way} to start afresh"
            )
        return found
    if not str(restore).isdecimal():
        raise UserError(
            f"restore={restore!r} is neither 'auto' nor 'latest', nor a number, nor a path that"
            f" ends in {job}/chk-N or {job}/sav-N"
        )
    return _Found(_load(store, job, int(restore)))


def _newest(store: Store, job: str, open_: Open) -> _Found:
    """Find the newest point of the job's history: a checkpoint, or the target of a later link."""
    past = catalog.history(store, job)
    newest = catalog.newest_number(store, job, past)
    refused: list[tuple[str, str]] = []
    found, damaged_links = read_all(store, job)
    for number, reason in damaged_links:
        if number > newest:
            refused.append((link_path(job, number), reason))
    for link in reversed(found):
        if link.number < newest:
            break
        there = open_(link.directory) if link.directory else store
        try:
            metadata = load_linked(there, link)
            # A link by itself claims nothing: it may be forged.
            if link.claimed and not is_claimed(there, link.job, link.checkpoint, link.kind):
                refused.append((str(link), "no job has claimed it"))
                continue
        except NotFound:
            if link.claimed and past.counts(*_place_of(link, None)):
                refused.append((str(link), "it was claimed and is not there any more"))
        except CorruptMetadata as error:
            refused.append((str(link), str(error)))
        else:
            if past.counts(*_place_of(link, metadata)):
                return _Found(metadata, link.directory, refused, link)
    start = lost_start(
        past, newest, [*(link.number for link in found), *(link.number for link in damaged_links)]
    )
    if start is not None:
        refused.append((f"chk-{start.number}", start.reason))
    metadata_, damaged = catalog.newest_valid(store, job)
    refused += [(f"chk-{number}", reason) for number, reason in damaged]
    return _Found(metadata_, "", refused)


def _place_of(link: CheckpointLink, target: CheckpointMetadata | None) -> tuple[int, int]:
    """Number of a link in the job's history, and the epoch that completed its target there.

    A claimed checkpoint is of another history: no epoch of this one completed it.
    """
    return link.number, 0 if link.claimed or target is None else target.epoch


def _load(store: Store, job: str, number: int) -> CheckpointMetadata:
    try:
        return catalog.load(store, job, number)
    except NotFound:
        complete = ", ".join(f"chk-{n}" for n in catalog.complete_checkpoints(store, job)) or "none"
        raise UserError(
            f"chk-{number} of job {job!r} is not complete or does not exist; complete are:"
            f" {complete}"
        ) from None


def in_new_names(
    restore: Restore,
    names: Mapping[str, str],
    tasks: Sequence[NewTask],
    keeping: Collection[str] = (),
) -> Restore:
    """Rename operators of the checkpoint, {old: new}.

    Args:
        keeping: sinks of the job that find notes of their own by their name.

    Raises: UserError when a name fits neither job nor checkpoint.
    """
    operators = {name for task in tasks for name in task.info.operators}
    for old, new in names.items():
        if new not in operators:
            hint = did_you_mean(new, sorted(operators))
            raise UserError(f"renamed {old}={new}: the job has no operator {new!r}; {hint}")
        if old in operators:
            raise UserError(
                f"renamed {old}={new}: the job still has an operator {old!r}; give it another name"
            )
    if restore.metadata is None:
        return restore
    for sink in sorted({t.sink for t in restore.metadata.transactions} & names.keys()):
        if names[sink] in keeping:
            raise UserError(f"renamed: sink {sink!r} keeps its name, by which its notes are found")
    try:
        return replace(restore, metadata=renamed(restore.metadata, names))
    except NoSuchName as reason:
        raise UserError(f"renamed: chk-{restore.metadata.checkpoint} {reason}") from None


def claimed(restore: Restore, tasks: Sequence[NewTask]) -> Restore:
    """Drop state that no operator of the plan claims, with a warning each; the user allowed it."""
    if restore.metadata is None:
        return restore
    dropped = unclaimed(restore.metadata, tasks)
    said = tuple(f"chk-{restore.metadata.checkpoint}: {what} is dropped" for what in dropped)
    metadata = claimed_transactions(restore.metadata, tasks)
    return replace(restore, metadata=metadata, warnings=(*restore.warnings, *said))


def new_tasks(plan: ExecutionPlan) -> list[NewTask]:
    """Describe the plan's tasks to the assignment."""
    return [
        NewTask(
            info=TaskInfo(
                task.name,
                [o.name for o in task.operators],
                [o.name for o in task.operators if o.stateful],
                task.parallelism,
            ),
            channels=[
                [
                    (edge, channel.producer)
                    for edge in task.inputs
                    for channel in channels_to(plan, plan.edges[edge], subtask)
                ]
                for subtask in range(task.parallelism)
            ],
            edges={
                edge.index: NewEdge(edge.key, edge.producer, edge.partitioner, edge.feedback)
                for edge in map(plan.edges.__getitem__, task.inputs)
            },
        )
        for task in plan.tasks
    ]
