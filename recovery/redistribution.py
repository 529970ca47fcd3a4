"""Which in-flight records of a checkpoint each new consumer replays, at any parallelism.

The edge's partitioner decides: `Affinity` after a change of the partitioner, `Redistribution`
after a change of parallelism. Within an old channel the receiver's part comes before the sender's.

Source: FLIP-76, "StateAssignmentOperation"; docs/design.md, "Redistribution".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from msgspec.structs import replace

from headrace.channels.partitioners.partitioner import Affinity, Partitioner, Redistribution
from headrace.channels.partitioners.registry import UnknownPartitioner, partitioner_named
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import merge_sides

from .event_time import same_channels
from .metadata import CheckpointMetadata, EdgeInfo

#: (old consumer, handle): the subtask that would consume the handle at the old parallelism.
_Owned = tuple[int, ChannelStateHandle]


class Incompatible(Exception):
    """The checkpoint cannot be restored into this program; the message says why, and a way out."""


@dataclass(frozen=True, slots=True)
class NewEdge:
    """An input edge of a task in the plan that runs now; `producer` is a task index.

    `feedback`: the back-edge of a loop.
    """

    key: str
    producer: int
    partitioner: Partitioner
    feedback: bool = False


def check_moved(metadata: CheckpointMetadata, edge: NewEdge) -> bool:
    """Tell whether a changed partitioner sends records in flight to other consumers than before.

    Raises: Incompatible: the old partitioner copied records, and consumers differ in the copies
        they have worked on; or records in flight can be told apart only by the old partitioner.
    """
    old = old_edges(metadata, edge)
    handles = [h for s in metadata.subtasks for h in s.inflight if h.edge in old and h.buffers]
    if not handles or not is_repartitioned(metadata, old, edge):
        return False
    was = metadata.edges[old[0]]
    filtered = any(buffer.filters for handle in handles for buffer in handle.buffers)
    if filtered or _may_have_copied(was):
        now = edge.partitioner
        raise Incompatible(
            f"chk-{metadata.checkpoint} holds in-flight records of edge {edge.key!r}, whose "
            f"partitioner was {_shown(was.partitioning, was.columns)} and is now "
            f"{_shown(now.name, now.key_columns)}: change it between an aligned checkpoint and its "
            "restore, which holds none"
        )
    return edge.partitioner.affinity is not Affinity.NONE


def in_flight_of(
    metadata: CheckpointMetadata,
    index: int,
    edge: NewEdge,
    widths: tuple[int, int],
    subtask: int,
    *,
    moved: bool,
) -> list[ChannelStateHandle]:
    """The handles of one edge that new consumer `subtask` replays, in order, in the new plan's
    terms.

    Args:
        widths: producers, consumers.
        moved: on some edge of the job (`check_moved`).
    """
    old = old_edges(metadata, edge)
    owned = [
        (handle.consumer if handle.side == "output" else snapshot.index, handle)
        for snapshot in metadata.subtasks
        for handle in snapshot.inflight
        if handle.edge in old
    ]
    if not owned:
        return []
    mine = _mine(metadata, old, edge, owned, widths[1], subtask)
    if moved or not same_channels(metadata, old, widths):
        mine = [replace(handle, watermarks=[]) for handle in mine]
    return merge_sides([replace(handle, edge=index) for handle in mine])


def _mine(
    metadata: CheckpointMetadata,
    old: Sequence[int],
    edge: NewEdge,
    owned: Sequence[_Owned],
    parallelism: int,
    subtask: int,
) -> list[ChannelStateHandle]:
    handles = [handle for _, handle in owned]
    affinity = edge.partitioner.affinity
    if affinity is not Affinity.NONE and is_repartitioned(metadata, old, edge):
        return handles if affinity is Affinity.COPY else _filtered(handles, parallelism, subtask)
    old_parallelism = metadata.tasks[metadata.edges[old[0]].consumer].parallelism
    if parallelism == old_parallelism:
        return _of_consumer(owned, subtask)
    match edge.partitioner.redistribution:
        case Redistribution.FILTER:
            return _filtered(handles, parallelism, subtask)
        case Redistribution.SHARES:
            return _share([handle for _, handle in sorted(owned, key=_place)], parallelism, subtask)
        case Redistribution.CHANNELS:
            dealt = set(sorted({_place(one) for one in owned})[subtask::parallelism])
            return [one[1] for one in owned if _place(one) in dealt]
        case Redistribution.REPLICA:
            return _of_consumer(owned, subtask % old_parallelism)
        case unknown:
            assert_never(unknown)


def old_edges(metadata: CheckpointMetadata, edge: NewEdge) -> list[int]:
    """Indexes, in the checkpoint, of the edges that bear this one's key."""
    return [i for i, e in enumerate(metadata.edges) if e.key == edge.key]


def is_repartitioned(metadata: CheckpointMetadata, old: Sequence[int], edge: NewEdge) -> bool:
    """The edge has another partitioner now. A custom partitioner's function is not compared."""
    partitioner = edge.partitioner
    now = (partitioner.name, partitioner.key_columns, partitioner.parameters)
    known = [metadata.edges[i] for i in old if metadata.edges[i].partitioning]
    return any((e.partitioning, tuple(e.columns), tuple(e.parameters)) != now for e in known)


def _may_have_copied(was: EdgeInfo) -> bool:
    try:
        return partitioner_named(was.partitioning).affinity is Affinity.COPY
    except UnknownPartitioner:
        # Of an old checkpoint that did not note it (""), or of a newer version's.
        return bool(was.partitioning)


def _shown(partitioning: str, columns: Sequence[str]) -> str:
    return f"{partitioning} by {', '.join(columns)}" if columns else partitioning


def _place(owned: _Owned) -> tuple[int, int, int]:
    """The old channel: old consumer, and the ends that the handle names."""
    owner, handle = owned
    return owner, handle.producer, handle.consumer


def _of_consumer(owned: Sequence[_Owned], subtask: int) -> list[ChannelStateHandle]:
    return [handle for owner, handle in owned if owner == subtask]


def _share(
    handles: Sequence[ChannelStateHandle], parallelism: int, subtask: int
) -> list[ChannelStateHandle]:
    """One new consumer's share, a run of all records; a blob is cut where two shares meet.

    Filtered buffers, of an edge that had affinity once, hold an unknown number of records and are
    not cut.
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


def _filtered(
    handles: Sequence[ChannelStateHandle], parallelism: int, subtask: int
) -> list[ChannelStateHandle]:
    """All handles, with a filter for the records of a new consumer."""
    return [
        replace(
            handle,
            buffers=[
                replace(b, filters=[*b.filters, (b.skip, parallelism, subtask)], skip=0)
                for b in handle.buffers
            ],
        )
        for handle in handles
    ]
