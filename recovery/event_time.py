"""Event time of a restored subtask, from the watermarks of the subtasks before it.

At equal parallelism every channel goes on with its watermark. At another parallelism a new channel
may bring records of any old channel of the edge, so the channel gets the oldest watermark among
these, and an operator the oldest among its old subtasks: windows may then fire later than without
the rescale, never earlier. Finished subtasks hold nothing back.

In-flight records given out by a changed partitioner come to subtasks, and through these to all
subtasks behind, with event times perhaps ahead of the records; so all channels and operators of the
job go back to the oldest watermark (`moved`).

Source: Flink keeps no watermarks in checkpoints; here in-flight and late records depend on them.
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
    """Return `new` with its restored watermark.

    `old`: indexes of the edge in the checkpoint; `widths`: numbers of producers and consumers.
    """
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
    """Return watermarks of the channels with records to come; ended channels count while records of
    the edge are left to replay.
    """
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
    """Return how far event time had come at the operators of `info` that subtask `subtask` goes on
    with.
    """
    names = set(info.operators)
    old = [s for s in metadata.subtasks if names & set(metadata.tasks[s.task].operators)]
    if not old:
        return MIN_WATERMARK
    if not moved and all(metadata.tasks[s.task].parallelism == info.parallelism for s in old):
        return min(s.watermark for s in old if s.index == subtask)
    return _oldest([s.watermark for s in old if not s.finished])


def _oldest(watermarks: Sequence[int]) -> int:
    """Return the oldest watermark; the end of time without any, since nothing can be late then."""
    return min(watermarks, default=MAX_WATERMARK)
