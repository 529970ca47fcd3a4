"""Who replays which in-flight records of a checkpoint, at any parallelism.

Records in flight go to the consumer that their edge's partitioner names at the new parallelism: along an edge with affinity each new consumer
reads what may be its own and filters; along one without, the records are dealt out in even shares, cut between records; along a forward edge
whole old channels are; and a broadcast consumer takes the place of one old consumer. Within an old channel the receiver's part comes before the
sender's.

Source: FLIP-76, "StateAssignmentOperation"; docs/design.md, "Redistribution".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from headrace.channels.partitioners import Broadcast, Custom, Forward, Hash
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import merge_sides

from .event_time import same_channels
from .metadata import CheckpointMetadata


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


#: {partitioner's name: its affinity}; that of all others is `NONE`.
_AFFINITIES = {
    Hash.name: Affinity.RECORD,
    Custom.name: Affinity.RECORD,
    Broadcast.name: Affinity.COPY,
    Forward.name: Affinity.CHANNEL,
}


def affinity_of(partitioning: str) -> Affinity:
    """Tell it from a partitioner's name."""
    return _AFFINITIES.get(partitioning, Affinity.NONE)


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


def check_moved(metadata: CheckpointMetadata, edge: NewEdge) -> bool:
    """Tell whether another partitioner sends records in flight to others than they were going to.

    Raises: Incompatible: the old one copied them, and some consumers have worked on what others have not; or it must still tell them apart.
    """
    old = old_edges(metadata, edge)
    handles = [h for s in metadata.subtasks for h in s.inflight if h.edge in old and h.buffers]
    if not handles or not _repartitioned(metadata, old, edge):
        return False
    was = metadata.edges[old[0]].partitioning
    filtered = any(buffer.filters for handle in handles for buffer in handle.buffers)
    if filtered or affinity_of(was) is Affinity.COPY:
        raise Incompatible(
            f"chk-{metadata.checkpoint} holds in-flight records of edge {edge.key!r}, whose partitioner was {_shown(was, metadata.edges[old[0]].columns)}"
            f" and is now {_shown(edge.partitioning, edge.columns)}: change it between an aligned checkpoint and its restore, which holds none"
        )
    return edge.affinity in (Affinity.RECORD, Affinity.COPY)


def in_flight_of(
    metadata: CheckpointMetadata,
    index: int,
    edge: NewEdge,
    widths: tuple[int, int],
    subtask: int,
    *,
    moved: bool,
) -> list[ChannelStateHandle]:
    """The handles of one edge that new consumer `subtask` replays, in order, in terms of the new plan.

    Args:
        widths: producers, consumers.
        moved: on some edge of the job (`check_moved`).
    """
    parallelism = widths[1]
    old = old_edges(metadata, edge)
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
    elif edge.affinity is Affinity.COPY and _repartitioned(metadata, old, edge):
        mine = [handle for _, handle in owned]
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
    if moved or not same_channels(metadata, old, widths):
        mine = [replace(handle, watermarks=[]) for handle in mine]
    return merge_sides([replace(handle, edge=index) for handle in mine])


def old_edges(metadata: CheckpointMetadata, edge: NewEdge) -> list[int]:
    """Indexes, in the checkpoint, of the edges that bear this one's key."""
    return [i for i, e in enumerate(metadata.edges) if e.key == edge.key]


def _repartitioned(metadata: CheckpointMetadata, old: Sequence[int], edge: NewEdge) -> bool:
    """The edge has another partitioner now. Which function a custom one calls cannot be known."""
    known = [metadata.edges[i] for i in old if metadata.edges[i].partitioning]
    now = (edge.partitioning, edge.columns)
    return bool(edge.partitioning) and any((e.partitioning, tuple(e.columns)) != now for e in known)


def _shown(partitioning: str, columns: Sequence[str]) -> str:
    return f"{partitioning} by {', '.join(columns)}" if columns else partitioning


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
