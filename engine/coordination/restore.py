"""Which checkpoint a run starts from, and the plan in the terms of `recovery/assignment.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.channels.partitioners import Hash
from headrace.recovery import catalog
from headrace.recovery.assignment import NewTask, claimed_transactions, unclaimed
from headrace.recovery.catalog import NoValidCheckpoint, WrongJob
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.metadata import CheckpointMetadata, TaskInfo
from headrace.recovery.redistribution import NewEdge, affinity_of
from headrace.recovery.renaming import NoSuchName, renamed
from headrace.recovery.store import NotFound, Store, StoreError

from ..api.errors import StorageUnreachable, UserError
from ..api.suggestion import did_you_mean
from ..plan.execution import EdgePlan, ExecutionPlan
from ..runtime.storage import open_store
from ..runtime.wiring import channels_to

_CHECKPOINT_PATH = re.compile(r"(?P<root>.+)/(?P<job>[^/]+)/(?:chk|sav)-(?P<number>\d+)/?")


@dataclass(frozen=True, slots=True)
class Restore:
    """Where a run starts.

    Attributes:
        metadata: the checkpoint; None: from nothing.
        origin: URL of the directory it lies in; empty: it is the job's own, to build upon and to delete.
        checkpoint_next: number of the run's first checkpoint, above all in the job's folder.
        warnings: what the user must know about the choice, one sentence each.
    """

    metadata: CheckpointMetadata | None
    origin: str
    checkpoint_next: int
    warnings: tuple[str, ...] = ()

    @property
    def own(self) -> CheckpointMetadata | None:
        """The checkpoint, if it is one of the job's own."""
        return None if self.origin else self.metadata


def resolve(
    store: Store | None, job: str, restore: str | int | None, directory: str = ""
) -> Restore:
    """Find the checkpoint that `restore` ("latest", a number, or a path that ends in JOB/chk-N) names.

    Args:
        directory: URL of `store`. A savepoint in it is somebody else's, like all in other directories.

    Raises UserError: there is no such complete checkpoint, it is damaged, or the folder belongs to another job; StorageUnreachable.
    """
    try:
        following = 1 if store is None else catalog.next_checkpoint_number(store, job)
        if store is not None:
            _check_owner(store, job)
        if restore is None:
            return Restore(None, "", following)
        metadata, origin, refused = _find(store, job, restore)
        if metadata.savepoint and not origin:
            origin = directory
        warnings = tuple(
            f"chk-{number} cannot be restored ({reason}); chk-{metadata.checkpoint} is used, so what was"
            f" committed to sinks after it will be written once more"
            for number, reason in refused
        )
        return Restore(metadata, origin, max(following, metadata.checkpoint + 1), warnings)
    except (CorruptMetadata, UnsupportedVersion, NoValidCheckpoint, WrongJob) as error:
        raise UserError(f"restore={restore!r}: {error}") from error
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error


def _check_owner(store: Store, job: str) -> None:
    """The newest checkpoint in the job's folder must be this job's. A damaged one says nothing and matters only on restore."""
    for number in catalog.complete_checkpoints(store, job)[:1]:
        try:
            catalog.load(store, job, number)
        except (CorruptMetadata, UnsupportedVersion, NotFound):
            return


def _find(
    store: Store | None, job: str, restore: str | int
) -> tuple[CheckpointMetadata, str, list[tuple[int, str]]]:
    """The checkpoint, the directory it lies in (empty: the job's own), and (number, reason) of newer ones that are damaged."""
    path = _CHECKPOINT_PATH.fullmatch(restore) if isinstance(restore, str) else None
    if path is not None:
        origin = path["root"]
        return _load(open_store(origin), path["job"], int(path["number"])), origin, []
    if store is None:
        raise UserError(
            f"restore={restore!r} needs a checkpoint directory; give the job checkpoints=DIR or the path of a checkpoint"
        )
    if restore == "latest":
        newest, refused = catalog.newest_valid(store, job)
        if newest is None:
            raise UserError(
                f"restore='latest': job {job!r} has no complete checkpoint there; leave restore out to start afresh"
            )
        return newest, "", refused
    if not str(restore).isdecimal():
        raise UserError(
            f"restore={restore!r} is neither 'latest', nor a number, nor a path that ends in {job}/chk-N or {job}/sav-N"
        )
    return _load(store, job, int(restore)), "", []


def _load(store: Store, job: str, number: int) -> CheckpointMetadata:
    try:
        return catalog.load(store, job, number)
    except NotFound:
        complete = ", ".join(f"chk-{n}" for n in catalog.complete_checkpoints(store, job)) or "none"
        raise UserError(
            f"chk-{number} of job {job!r} is not complete or does not exist; complete are: {complete}"
        ) from None


def in_new_names(restore: Restore, names: Mapping[str, str], tasks: Sequence[NewTask]) -> Restore:
    """The same start with the operators' new names, {old: new}. Raises: UserError when they fit neither job nor checkpoint."""
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
        raise UserError(
            f"renamed: sink {sink!r} keeps its name, by which its transactions are known"
        )
    try:
        return replace(restore, metadata=renamed(restore.metadata, names))
    except NoSuchName as reason:
        raise UserError(f"renamed: chk-{restore.metadata.checkpoint} {reason}") from None


def claimed(restore: Restore, tasks: Sequence[NewTask]) -> Restore:
    """The same start without what nothing in the plan claims, which the user allowed; each is a warning."""
    if restore.metadata is None:
        return restore
    dropped = unclaimed(restore.metadata, tasks)
    said = tuple(f"chk-{restore.metadata.checkpoint}: {what} is dropped" for what in dropped)
    metadata = claimed_transactions(restore.metadata, tasks)
    return replace(restore, metadata=metadata, warnings=(*restore.warnings, *said))


def new_tasks(plan: ExecutionPlan) -> list[NewTask]:
    """The plan as the assignment sees it."""
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
            edges={edge: _new_edge(plan.edges[edge]) for edge in task.inputs},
        )
        for task in plan.tasks
    ]


def _new_edge(edge: EdgePlan) -> NewEdge:
    name = edge.partitioner.name
    columns = edge.partitioner.columns if isinstance(edge.partitioner, Hash) else ()
    return NewEdge(edge.key, edge.producer, affinity_of(name), name, tuple(columns))
