"""Event time of a restored subtask: from the watermarks of the subtasks before it.

At the same parallelism every channel goes on where it stood. At another one a new channel may bring what any old channel of its edge would have
brought, so it stands at the oldest of them, as does the operator at the oldest of its old subtasks: windows may then fire later than they
would have, never earlier. Subtasks that had finished hold nothing back.

Where records in flight are given out by another partitioner than the one that they were sent by, they come to subtasks, and through these to all
that lie behind, whose event time may have been ahead of them; so all channels and operators of the job go back to the oldest (`moved`).

Source: Flink keeps no watermarks in checkpoints; ours are kept because records in flight, and records that are late, depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from .metadata import ChannelPosition, CheckpointMetadata, TaskInfo


def same_channels(
    metadata: CheckpointMetadata, old: Sequence[int], widths: tuple[int, int]
) -> bool:
    """The edges `old` of the checkpoint joined as many producers and consumers as `widths` says."""
    tasks, edges = metadata.tasks, metadata.edges
    found = {
        (tasks[edges[i].producer].parallelism, tasks[edges[i].consumer].parallelism) for i in old
    }
    return found == {widths}


def restored_channel(
    metadata: CheckpointMetadata,
    old: Sequence[int],
    widths: tuple[int, int],
    new: ChannelPosition,
    *,
    moved: bool,
) -> ChannelPosition:
    """`new` with the watermark that it goes on from. `old`: indexes of its edge in the checkpoint; `widths`: its producers and consumers."""
    stood = [p for s in metadata.subtasks for p in s.received if p.edge in old]
    watermark, idle = MIN_WATERMARK, False
    if stood and not moved and same_channels(metadata, old, widths):
        mine = [p for p in stood if (p.producer, p.consumer) == (new.producer, new.consumer)]
        watermark = min((p.watermark for p in mine), default=MIN_WATERMARK)
        idle = bool(mine) and all(p.idle for p in mine)
    elif stood:
        watermark = _oldest(_told(metadata, old))
    return ChannelPosition(
        new.edge, new.producer, new.consumer, new.position, new.ended, watermark, idle
    )


def _told(metadata: CheckpointMetadata, old: Sequence[int]) -> list[int]:
    """Watermarks of the channels that still bring something: one that had ended does, while records of its edge are left to replay."""
    told: list[int] = []
    for subtask in metadata.subtasks:
        replays = any(handle.edge in old for handle in subtask.inflight)
        told += [
            p.watermark for p in subtask.received if p.edge in old and (replays or not p.ended)
        ]
    return told


def restored_operator(
    metadata: CheckpointMetadata, info: TaskInfo, subtask: int, *, moved: bool
) -> int:
    """How far event time had come at the operators of `info` that subtask `subtask` goes on with."""
    names = set(info.operators)
    old = [s for s in metadata.subtasks if names & set(metadata.tasks[s.task].operators)]
    if not old:
        return MIN_WATERMARK
    if not moved and all(metadata.tasks[s.task].parallelism == info.parallelism for s in old):
        return min(s.watermark for s in old if s.index == subtask)
    return _oldest([s.watermark for s in old if not s.finished])


def _oldest(watermarks: Sequence[int]) -> int:
    """Nothing that goes on: nothing comes any more that could be late."""
    return min(watermarks, default=MAX_WATERMARK)
