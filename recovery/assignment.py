"""Who starts from what: a checkpoint's subtask snapshots, given out to the subtasks of the plan that runs now.

State is found again by operator name, channels by edge key. Each new subtask gets the handles that may hold something of its own; keyed
state is cut to its key groups when it is read. Positions start at zero in every attempt, so of the channels only the ends of
input are carried over.

In-flight records go to the consumer that their edge's partitioner names at the new parallelism: along an edge with affinity each new consumer reads
what may be its own and filters; along one without, the records are dealt out in even shares, cut between records; along a forward edge whole old
channels are; and a broadcast consumer takes the place of one old consumer. Within an old channel the receiver's part comes before the sender's.

Source: FLIP-76, "StateAssignmentOperation"; docs/design.md, "Redistribution".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from msgspec.structs import replace

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.channels.keygroups import key_group_range
from headrace.channels.partitioners import Broadcast, Custom, Hash
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import merge_sides

from .event_time import restored_channel, restored_operator, same_channels
from .metadata import (
    ChannelPosition,
    CheckpointMetadata,
    DatabaseHandle,
    StateHandle,
    SubtaskSnapshot,
    TaskInfo,
)


class Incompatible(Exception):
    """The checkpoint cannot be restored into this program; the message says what differs and what to do."""


class Affinity(Enum):
    """What an edge's partitioner makes of a record."""

    #: It depends on the record where it goes (hash, custom).
    RECORD = "record"
    #: Any consumer will do (rebalance, shuffle).
    NONE = "none"
    #: Any consumer will do, but the records of one channel stay together and in order (forward).
    CHANNEL = "channel"
    #: Every consumer gets it (broadcast).
    COPY = "copy"


#: Of partitioners that say something about it, by name.
_AFFINITIES = {
    Hash.name: Affinity.RECORD,
    Custom.name: Affinity.RECORD,
    Broadcast.name: Affinity.COPY,
}


@dataclass(frozen=True, slots=True)
class NewEdge:
    """An input edge of a task of the plan that runs now; `producer` is a task index.

    Attributes:
        partitioning: as in `EdgeInfo`, and `columns`; empty counts as unchanged.
    """

    key: str
    producer: int
    affinity: Affinity
    partitioning: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task of the plan that runs now.

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
    """Snapshots in terms of the new plan, sorted by task and subtask.

    Raises Incompatible: another max parallelism; state, in-flight records or transactions that nothing claims (unless allowed); records
    in flight on an edge whose partitioner was changed, where that cannot be made good.
    """
    if metadata.max_parallelism != max_parallelism:
        raise Incompatible(
            f"chk-{metadata.checkpoint} was taken with max_parallelism={metadata.max_parallelism} and the job now has"
            f" {max_parallelism}: key groups would move; set max_parallelism={metadata.max_parallelism}"
        )
    dropped = unclaimed(metadata, tasks)
    if dropped and not allow_unclaimed:
        raise Incompatible(
            f"chk-{metadata.checkpoint} holds {dropped[0]}, which this job does not have: give an operator its name, keep the"
            f" operators at an edge's ends, or allow unclaimed state to drop what is not claimed{_guess(metadata, tasks)}"
        )
    for task in tasks:
        for edge in task.edges.values():
            _check_repartitioned(metadata, edge)
    finished = [_finished(metadata, task.info) for task in tasks]
    _reopen(finished, tasks)
    return [
        _snapshot(metadata, tasks, finished, index, subtask)
        for index, task in enumerate(tasks)
        for subtask in range(task.info.parallelism)
    ]


def _guess(metadata: CheckpointMetadata, tasks: Sequence[NewTask]) -> str:
    """How to say that an operator was renamed, where some are gone and others are new."""
    sinks = {transaction.sink for transaction in metadata.transactions}
    old = [name for task in metadata.tasks for name in task.operators]
    new = [name for task in tasks for name in task.info.operators]
    gone = [n for n in old if n not in new and n not in sinks]
    fresh = [n for n in new if n not in old]
    if not gone or not fresh:
        return ""
    in_order = fresh[:1] if len(gone) == len(fresh) else []
    name = next(iter(get_close_matches(gone[0], fresh, n=1) or in_order), "NEW")
    return f"; if {gone[0]!r} has another name now, say so with --map {gone[0]}={name} (renamed= in code)"


def unclaimed(metadata: CheckpointMetadata, tasks: Sequence[NewTask]) -> list[str]:
    """What nothing in the new plan claims, in words: state, in-flight records, transactions that may not be committed."""
    names = {name for task in tasks for name in task.info.operators}
    keys = {edge.key for task in tasks for edge in task.edges.values()}
    kept = {handle.operator for s in metadata.subtasks for handle in s.states}
    kept |= {database.operator for s in metadata.subtasks for database in s.databases}
    flying = {metadata.edges[h.edge].key for s in metadata.subtasks for h in s.inflight}
    sinks = {transaction.sink for transaction in metadata.transactions}
    return [
        *(f"state of operator {name!r}" for name in sorted(kept - names)),
        *(f"in-flight records of edge {key!r}" for key in sorted(flying - keys)),
        *(f"transactions of sink {name!r}" for name in sorted(sinks - names)),
    ]


def claimed_transactions(
    metadata: CheckpointMetadata, tasks: Sequence[NewTask]
) -> CheckpointMetadata:
    """The checkpoint without transactions of sinks that the new plan lacks."""
    names = {name for task in tasks for name in task.info.operators}
    return replace(metadata, transactions=[t for t in metadata.transactions if t.sink in names])


def _check_repartitioned(metadata: CheckpointMetadata, edge: NewEdge) -> None:
    """Records in flight can be given out by another partitioner, unless it or the old one copies, or the old one must tell them apart."""
    old = _old_edges(metadata, edge)
    handles = [h for s in metadata.subtasks for h in s.inflight if h.edge in old and h.buffers]
    if not handles or not _repartitioned(metadata, old, edge):
        return
    was = metadata.edges[old[0]].partitioning
    filtered = any(buffer.filters for handle in handles for buffer in handle.buffers)
    if filtered or Affinity.COPY in (edge.affinity, _AFFINITIES.get(was)):
        raise Incompatible(
            f"chk-{metadata.checkpoint} holds in-flight records of edge {edge.key!r}, whose partitioner was {_shown(was, metadata.edges[old[0]].columns)}"
            f" and is now {_shown(edge.partitioning, edge.columns)}: change it between an aligned checkpoint and its restore, which holds none"
        )


def _repartitioned(metadata: CheckpointMetadata, old: Sequence[int], edge: NewEdge) -> bool:
    """The edge has another partitioner now. Which function a custom one calls cannot be known."""
    known = [metadata.edges[i] for i in old if metadata.edges[i].partitioning]
    now = (edge.partitioning, edge.columns)
    return bool(edge.partitioning) and any((e.partitioning, tuple(e.columns)) != now for e in known)


def _shown(partitioning: str, columns: Sequence[str]) -> str:
    return f"{partitioning} by {', '.join(columns)}" if columns else partitioning


def _finished(metadata: CheckpointMetadata, info: TaskInfo) -> list[bool]:
    """Which subtasks of the new task have finished already: those whose predecessors had.

    Of a task that had finished in part and has another parallelism now, none has: each gets something of what is unfinished.
    """
    old_tasks = [
        index
        for index, task in enumerate(metadata.tasks)
        if set(task.operators) & set(info.operators)
    ]
    flags = [[s.finished for s in metadata.subtasks if s.task == index] for index in old_tasks]
    if not flags:
        return [False] * info.parallelism
    if all(len(subtasks) == info.parallelism for subtasks in flags):
        return [all(column) for column in zip(*flags, strict=True)]
    return [all(flag for subtasks in flags for flag in subtasks)] * info.parallelism


def _reopen(finished: list[list[bool]], tasks: Sequence[NewTask]) -> None:
    """What has an unfinished producer has not finished: an at-least-once cut lets a consumer run ahead to the end of its input."""
    ahead = True
    while ahead:
        ahead = False
        for index, task in enumerate(tasks):
            for subtask, channels in enumerate(task.channels):
                ended = all(
                    finished[task.edges[edge].producer][producer] for edge, producer in channels
                )
                if finished[index][subtask] and not ended:
                    finished[index][subtask] = False
                    ahead = True


def _snapshot(
    metadata: CheckpointMetadata,
    tasks: Sequence[NewTask],
    finished: Sequence[Sequence[bool]],
    index: int,
    subtask: int,
) -> SubtaskSnapshot:
    task = tasks[index]
    return SubtaskSnapshot(
        task=index,
        index=subtask,
        finished=finished[index][subtask],
        states=_handles(metadata, task.info, subtask, finished=finished[index][subtask]),
        received=[
            _received(metadata, tasks, finished, task, ChannelId(edge, producer, subtask))
            for edge, producer in task.channels[subtask]
        ],
        sent=[],
        inflight=[
            handle
            for edge, new in task.edges.items()
            for handle in _in_flight(
                metadata, edge, new, (len(finished[new.producer]), task.info.parallelism), subtask
            )
        ],
        databases=_databases(metadata, task.info, subtask, finished=finished[index][subtask]),
        watermark=restored_operator(metadata, task.info, subtask),
    )


def _received(
    metadata: CheckpointMetadata,
    tasks: Sequence[NewTask],
    finished: Sequence[Sequence[bool]],
    task: NewTask,
    channel: ChannelId,
) -> ChannelPosition:
    edge = task.edges[channel.edge]
    widths = (tasks[edge.producer].info.parallelism, task.info.parallelism)
    new = ChannelPosition(*channel, 0, finished[edge.producer][channel.producer])
    return restored_channel(metadata, _old_edges(metadata, edge), widths, new)


def _old_edges(metadata: CheckpointMetadata, edge: NewEdge) -> list[int]:
    return [i for i, e in enumerate(metadata.edges) if e.key == edge.key]


def _in_flight(
    metadata: CheckpointMetadata, index: int, edge: NewEdge, widths: tuple[int, int], subtask: int
) -> list[ChannelStateHandle]:
    """The handles of one edge that new consumer `subtask` replays, in order, in terms of the new plan. `widths`: producers, consumers."""
    parallelism = widths[1]
    old = _old_edges(metadata, edge)
    #: (subtask that would consume it at the old parallelism, handle)
    owned = [
        (handle.consumer if handle.side == "output" else snapshot.index, handle)
        for snapshot in metadata.subtasks
        for handle in snapshot.inflight
        if handle.edge in old
    ]
    if not owned:
        return []
    old_parallelism = metadata.tasks[metadata.edges[old[0]].consumer].parallelism
    if edge.affinity is Affinity.RECORD and _repartitioned(metadata, old, edge):
        mine = [_filtered(handle, parallelism, subtask) for _, handle in owned]
    elif parallelism == old_parallelism:
        mine = [handle for owner, handle in owned if owner == subtask]
    elif edge.affinity is Affinity.COPY:
        mine = [handle for owner, handle in owned if owner == subtask % old_parallelism]
    elif edge.affinity is Affinity.RECORD:
        mine = [_filtered(handle, parallelism, subtask) for _, handle in owned]
    elif edge.affinity is Affinity.NONE:
        mine = _share([handle for _, handle in sorted(owned, key=_place)], parallelism, subtask)
    else:
        channels = sorted({(owner, h.producer, h.consumer) for owner, h in owned})
        dealt = set(channels[subtask::parallelism])
        mine = [h for owner, h in owned if (owner, h.producer, h.consumer) in dealt]
    if not same_channels(metadata, old, widths):
        mine = [replace(handle, watermarks=[]) for handle in mine]
    return merge_sides([replace(handle, edge=index) for handle in mine])


def _place(owned: tuple[int, ChannelStateHandle]) -> tuple[int, int, int]:
    owner, handle = owned
    return owner, handle.producer, handle.consumer


def _share(
    handles: Sequence[ChannelStateHandle], parallelism: int, subtask: int
) -> list[ChannelStateHandle]:
    """The records that are one new consumer's share, a run of them all; a blob is cut where two shares meet.

    Filtered buffers, of which nobody knows yet how many records are left, are not cut: an edge that had affinity once.
    """
    total = sum(b.rows - b.skip for handle in handles for b in handle.buffers)
    low, high = subtask * total // parallelism, (subtask + 1) * total // parallelism
    shares: list[ChannelStateHandle] = []
    position = 0
    for handle in handles:
        buffers: list[BufferHandle] = []
        for buffer in handle.buffers:
            left = buffer.rows - buffer.skip
            start, end = max(low - position, 0), min(high - position, left)
            if buffer.filters:
                if low <= position < high:
                    buffers.append(buffer)
            elif start < end:
                first = buffer.start + buffer.skip + start
                buffers.append(replace(buffer, start=first, rows=end - start, skip=0))
            position += left
        if buffers:
            shares.append(replace(handle, buffers=buffers))
    return shares


def _filtered(handle: ChannelStateHandle, parallelism: int, subtask: int) -> ChannelStateHandle:
    buffers = [
        replace(b, filters=[*b.filters, (b.skip, parallelism, subtask)], skip=0)
        for b in handle.buffers
    ]
    return replace(handle, buffers=buffers)


def _handles(
    metadata: CheckpointMetadata, info: TaskInfo, subtask: int, *, finished: bool
) -> list[StateHandle]:
    """Every handle of the task's operators that may hold something for this subtask."""
    mine = key_group_range(metadata.max_parallelism, info.parallelism, subtask)
    handles: list[StateHandle] = []
    for snapshot in metadata.subtasks:
        old = metadata.tasks[snapshot.task]
        theirs = key_group_range(metadata.max_parallelism, old.parallelism, snapshot.index)
        closed = not finished and _closed(metadata, snapshot, info)
        for handle in snapshot.states:
            if handle.operator not in info.operators or (closed and handle.kind == "keyed"):
                continue
            if _wanted(
                handle, subtask, info.parallelism, snapshot.index, old.parallelism, mine, theirs
            ):
                handles.append(handle)
    return handles


def _closed(metadata: CheckpointMetadata, snapshot: SubtaskSnapshot, info: TaskInfo) -> bool:
    """No record can come for this old subtask's keys, and what `finish` emits for them has been emitted.

    So an unfinished subtask, which will finish once more, must not get them. A consumer that an at-least-once cut let run ahead is not closed.
    """
    old = metadata.tasks[snapshot.task]
    return (
        snapshot.finished
        and old.parallelism != info.parallelism
        and metadata.mode != CheckpointMode.AT_LEAST_ONCE.value
    )


def _databases(
    metadata: CheckpointMetadata, info: TaskInfo, subtask: int, *, finished: bool
) -> list[DatabaseHandle]:
    """Every database of the task's operators that may hold a key group of this subtask."""
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


def _wanted(
    handle: StateHandle,
    subtask: int,
    parallelism: int,
    old_subtask: int,
    old_parallelism: int,
    mine: range,
    theirs: range,
) -> bool:
    match handle.kind:
        case "keyed":
            return mine.start < theirs.stop and theirs.start < mine.stop
        case "union":
            return True
        case "broadcast":
            return old_subtask == subtask % old_parallelism
        case "list":
            return old_subtask % parallelism == subtask
        case kind:
            raise Incompatible(
                f"state {handle.state!r} of {handle.operator!r} is of unknown kind {kind!r}"
            )
