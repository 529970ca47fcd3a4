"""Assigns a checkpoint's subtask snapshots to the subtasks of the current plan.

Operator names find state again, edge keys find channels. Each new subtask gets the handles that may
hold some of its state; reading cuts keyed state to its key groups. Positions start at zero in every
attempt, so of the channels only the ends of input are carried over. `redistribution.py` assigns
in-flight records.

Source: Flink, `StateAssignmentOperation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

from msgspec.structs import replace

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.channels.keygroups import key_group_range

from .event_time import restored_channel, restored_operator
from .handles import DatabaseHandle, StateHandle
from .metadata import ChannelPosition, CheckpointMetadata, SubtaskSnapshot, TaskInfo
from .redistribution import Incompatible, NewEdge, check_moved, in_flight_of, old_edges
from .waves import Waves, waves_of

_IN_FLIGHT = "in-flight records of edge"


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task of the current plan.

    Attributes:
        channels: (edge index, producer subtask) pairs of its input channels, by consumer subtask.
        edges: its input edges by index.
    """

    info: TaskInfo
    channels: Sequence[Sequence[tuple[int, int]]]
    edges: Mapping[int, NewEdge]


def assign(
    metadata: CheckpointMetadata,
    tasks: Sequence[NewTask],
    max_parallelism: int,
    *,
    allow_unclaimed: bool = False,
) -> list[SubtaskSnapshot]:
    """Return snapshots in terms of the new plan, sorted by task and subtask.

    Raises Incompatible: another max parallelism; state, in-flight records or transactions without a
    claimant (unless allowed); in-flight records of an edge whose partitioner was changed in a way
    that cannot be made good.
    """
    if metadata.max_parallelism != max_parallelism:
        raise Incompatible(
            f"chk-{metadata.checkpoint} was taken with max_parallelism={metadata.max_parallelism}"
            " and the job now has"
            f" {max_parallelism}: key groups would move; set"
            f" max_parallelism={metadata.max_parallelism}"
        )
    dropped = unclaimed(metadata, tasks)
    if dropped and not allow_unclaimed:
        raise Incompatible(
            f"chk-{metadata.checkpoint} holds {dropped[0]}, {_missing(dropped[0], tasks)},"
            f" or allow unclaimed state to drop what is not claimed{_guess(metadata, tasks)}"
        )
    #: By task: in-flight records go to other subtasks than before.
    moved = [
        True in {check_moved(metadata, edge) for edge in task.edges.values()} for task in tasks
    ]
    dealt = [_is_dealt_anew(metadata, task.info) for task in tasks]
    finished = [
        _finished(metadata, task.info, moved=is_moved or is_dealt)
        for task, is_moved, is_dealt in zip(tasks, moved, dealt, strict=True)
    ]
    _reopen(finished, tasks)
    waves = waves_of(metadata, [(task.info.parallelism, task.edges) for task in tasks])
    return [
        _snapshot(
            metadata,
            tasks,
            finished,
            waves,
            index,
            subtask,
            moved=True in moved,
            dealt=True in dealt,
        )
        for index, task in enumerate(tasks)
        for subtask in range(task.info.parallelism)
    ]


def _missing(dropped: str, tasks: Sequence[NewTask]) -> str:
    """Say which operator or edge the job lacks, and how to keep the data."""
    for task in tasks:
        for producer, consumer in pairwise(task.info.operators):
            if dropped.startswith(f"{_IN_FLIGHT} '{producer}->{consumer}/"):
                return (
                    f"and {producer!r} and {consumer!r} now have no exchange between them: keep it,"
                    " or remove it between an aligned checkpoint and its restore, which holds none"
                )
    return f"which this job does not have: {_remedy(dropped)}"


def _remedy(dropped: str) -> str:
    """Return the sentence how to keep state that would be dropped."""
    if dropped.startswith(_IN_FLIGHT):
        return (
            "keep the operators at its ends, or change them between an aligned checkpoint and its"
            " restore, which holds none"
        )
    return "give an operator its name"


def _guess(metadata: CheckpointMetadata, tasks: Sequence[NewTask]) -> str:
    """Return a sentence that proposes a renaming, if some operators are gone and others new."""
    sinks = {transaction.sink for transaction in metadata.transactions}
    old = [name for task in metadata.tasks for name in task.operators]
    new = [name for task in tasks for name in task.info.operators]
    gone = [n for n in old if n not in new and n not in sinks]
    fresh = [n for n in new if n not in old]
    if not gone or not fresh:
        return ""
    in_order = fresh[:1] if len(gone) == len(fresh) else []
    name = next(iter(get_close_matches(gone[0], fresh, n=1) or in_order), "NEW")
    return (
        f"; if {gone[0]!r} has another name now, say so with --map {gone[0]}={name}"
        " (renamed= in code)"
    )


def unclaimed(metadata: CheckpointMetadata, tasks: Sequence[NewTask]) -> list[str]:
    """Return everything without a claimant in the new plan, in words: state, in-flight records,
    transactions that may not be committed.
    """
    names = {name for task in tasks for name in task.info.operators}
    keys = {edge.key for task in tasks for edge in task.edges.values()}
    kept = {handle.operator for s in metadata.subtasks for handle in s.states}
    kept |= {database.operator for s in metadata.subtasks for database in s.databases}
    flying = {metadata.edges[h.edge].key for s in metadata.subtasks for h in s.inflight}
    sinks = {transaction.sink for transaction in metadata.transactions}
    return [
        *(f"state of operator {name!r}" for name in sorted(kept - names)),
        *(f"{_IN_FLIGHT} {key!r}" for key in sorted(flying - keys)),
        *(f"transactions of sink {name!r}" for name in sorted(sinks - names)),
    ]


def claimed_transactions(
    metadata: CheckpointMetadata, tasks: Sequence[NewTask]
) -> CheckpointMetadata:
    """Return the checkpoint without transactions of sinks that the new plan lacks."""
    names = {name for task in tasks for name in task.info.operators}
    return replace(metadata, transactions=[t for t in metadata.transactions if t.sink in names])


def _finished(metadata: CheckpointMetadata, info: TaskInfo, *, moved: bool) -> list[bool]:
    """Return the subtasks of the new task whose predecessors had all finished.

    A task that had finished in part, and now has another parallelism, gets its in-flight records
    by another partitioner, or deals its state out anew (`moved`), has no finished subtask: each
    gets a share of the unfinished part.
    """
    old_tasks = [
        index
        for index, task in enumerate(metadata.tasks)
        if set(task.operators) & set(info.operators)
    ]
    flags = [[s.finished for s in metadata.subtasks if s.task == index] for index in old_tasks]
    if not flags:
        return [False] * info.parallelism
    if not moved and all(len(subtasks) == info.parallelism for subtasks in flags):
        return [all(column) for column in zip(*flags, strict=True)]
    return [all(flag for subtasks in flags for flag in subtasks)] * info.parallelism


def _is_dealt_anew(metadata: CheckpointMetadata, info: TaskInfo) -> bool:
    """Return whether the task had finished in part and keeps union state: operators deal out what
    such state holds, as a source its splits, at every restore, and so to every subtask.
    """
    old = [
        snapshot
        for snapshot in metadata.subtasks
        if set(metadata.tasks[snapshot.task].operators) & set(info.operators)
    ]
    kinds = {h.kind for s in old for h in s.states if h.operator in info.operators}
    return "union" in kinds and len({s.finished for s in old}) > 1


def _reopen(finished: list[list[bool]], tasks: Sequence[NewTask]) -> None:
    """Take back `finished` from tasks with an unfinished producer: an at-least-once cut lets a
    consumer run ahead to the end of its input. The head of a loop finishes before its back-edges.
    """
    ahead = True
    while ahead:
        ahead = False
        for index, task in enumerate(tasks):
            for subtask, channels in enumerate(task.channels):
                ended = all(
                    finished[task.edges[edge].producer][producer]
                    for edge, producer in channels
                    if not task.edges[edge].feedback
                )
                if finished[index][subtask] and not ended:
                    finished[index][subtask] = False
                    ahead = True


def _snapshot(
    metadata: CheckpointMetadata,
    tasks: Sequence[NewTask],
    finished: Sequence[Sequence[bool]],
    waves: Waves,
    index: int,
    subtask: int,
    *,
    moved: bool,
    dealt: bool,
) -> SubtaskSnapshot:
    task = tasks[index]
    # Records come from and to other subtasks: event time counts as after a rescale.
    elsewhere = moved or dealt
    return SubtaskSnapshot(
        task=index,
        index=subtask,
        finished=finished[index][subtask],
        states=_handles(metadata, task.info, subtask, finished=finished[index][subtask]),
        received=[
            _received(
                metadata, tasks, finished, task, ChannelId(edge, producer, subtask), moved=elsewhere
            )
            for edge, producer in task.channels[subtask]
        ],
        sent=[],
        inflight=[
            replace(handle, wave=waves.get((edge, handle.wave), 0))
            for edge, new in task.edges.items()
            for handle in in_flight_of(
                metadata,
                edge,
                new,
                (len(finished[new.producer]), task.info.parallelism),
                subtask,
                moved=moved,
            )
        ],
        databases=_databases(metadata, task.info, subtask, finished=finished[index][subtask]),
        watermark=restored_operator(metadata, task.info, subtask, moved=elsewhere),
    )


def _received(
    metadata: CheckpointMetadata,
    tasks: Sequence[NewTask],
    finished: Sequence[Sequence[bool]],
    task: NewTask,
    channel: ChannelId,
    *,
    moved: bool,
) -> ChannelPosition:
    edge = task.edges[channel.edge]
    widths = (tasks[edge.producer].info.parallelism, task.info.parallelism)
    new = ChannelPosition(*channel, 0, finished[edge.producer][channel.producer])
    return restored_channel(metadata, old_edges(metadata, edge), widths, new, moved=moved)


@dataclass(frozen=True, slots=True)
class _Place:
    """A subtask among the subtasks of a task, and the key groups there."""

    index: int
    parallelism: int
    groups: range

    @staticmethod
    def of(metadata: CheckpointMetadata, index: int, parallelism: int) -> _Place:
        groups = key_group_range(metadata.max_parallelism, parallelism, index)
        return _Place(index, parallelism, groups)


def _handles(
    metadata: CheckpointMetadata, info: TaskInfo, subtask: int, *, finished: bool
) -> list[StateHandle]:
    """Return every handle of the task's operators that may hold some state of this subtask."""
    new = _Place.of(metadata, subtask, info.parallelism)
    handles: list[StateHandle] = []
    for snapshot in metadata.subtasks:
        old = _Place.of(metadata, snapshot.index, metadata.tasks[snapshot.task].parallelism)
        closed = not finished and _closed(metadata, snapshot, info)
        handles += [
            handle
            for handle in snapshot.states
            if handle.operator in info.operators
            and not (closed and handle.kind == "keyed")
            and _goes_to(handle, old, new)
        ]
    return handles


def _closed(metadata: CheckpointMetadata, snapshot: SubtaskSnapshot, info: TaskInfo) -> bool:
    """Return whether an old subtask's keys get no more records, all results of `finish` included.

    An unfinished subtask, which will finish once more, must not get these keys. A consumer ahead of
    an at-least-once cut is not closed.
    """
    old = metadata.tasks[snapshot.task]
    return (
        snapshot.finished
        and (old.parallelism != info.parallelism or _is_dealt_anew(metadata, info))
        and metadata.mode != CheckpointMode.AT_LEAST_ONCE.value
    )


def _databases(
    metadata: CheckpointMetadata, info: TaskInfo, subtask: int, *, finished: bool
) -> list[DatabaseHandle]:
    """Return every database of the task's operators that may hold a key group of this subtask."""
    mine = key_group_range(metadata.max_parallelism, info.parallelism, subtask)
    return [
        database
        for snapshot in metadata.subtasks
        if finished or not _closed(metadata, snapshot, info)
        for database in snapshot.databases
        if database.operator in info.operators
        and mine.start < database.end_group
        and database.first_group < mine.stop
    ]


def _goes_to(handle: StateHandle, old: _Place, new: _Place) -> bool:
    """Return whether state of subtask `old` may be for subtask `new`."""
    match handle.kind:
        case "keyed":
            return new.groups.start < old.groups.stop and old.groups.start < new.groups.stop
        case "union":
            return True
        case "broadcast":
            return old.index == new.index % old.parallelism
        case "list":
            return old.index % new.parallelism == new.index
        case kind:
            raise Incompatible(
                f"state {handle.state!r} of {handle.operator!r} is of unknown kind {kind!r}"
            )
