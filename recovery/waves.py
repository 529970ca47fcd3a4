"""Waves of a replay: in-flight records that the whole job works on before it begins others.

A forward edge holds records of many keys and no key to tell them apart. A rescale deals out its old
channels, and new records of a key may take another channel than the key's records in flight. So the
job replays in waves. Waves count down; new records come in wave 0. No subtask begins a wave before
the job has worked on all records of the wave before, and on everything that came of them: a
checkpoint without such records ends the wave (`engine/coordinator/checkpoints.py`).

Edges near the sinks replay first, each depth in a wave of its own. So within a wave an edge has
records to replay or records that came of a replay further up, never both. After a second rescale
amid the waves, records of an earlier wave still go before records of later waves.

Loops promise no order among their rounds. A wave ends when its records have left the loops.

All records are in wave 0 when parallelism stays, or when no forward edge holds records: each other
edge finds the owner of a record, or promises no order.

Source: docs/design.md, "Order per key across a rescale".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.channels.partitioners.partitioner import Redistribution

from .metadata import CheckpointMetadata, SubtaskSnapshot
from .redistribution import NewEdge, is_repartitioned, old_edges

#: {(edge of the new plan, wave in the checkpoint): wave of the replay}; absent: wave 0.
Waves = dict[tuple[int, int], int]


def waves_of(
    metadata: CheckpointMetadata, inputs: Sequence[tuple[int, Mapping[int, NewEdge]]]
) -> Waves:
    """Return the wave of all in-flight records of a checkpoint.

    `inputs`: (parallelism, input edges by index) of every task of the new plan.
    """
    depths = _depths([edges for _, edges in inputs])
    #: {(edge, wave in the checkpoint): (-wave, depth)}; the lowest is the first to be replayed.
    places: dict[tuple[int, int], tuple[int, int]] = {}
    moved: list[tuple[int, int]] = []
    for (parallelism, edges), depth in zip(inputs, depths, strict=True):
        for index, edge in edges.items():
            for wave in _waves_held(metadata, edge):
                places[index, wave] = (-wave, depth)
                if wave or _is_dealt(metadata, edge, parallelism):
                    moved += [(-wave, depth)] * _keeps_channels(edge)
    ranks = sorted(set(places.values()))
    if len({wave for wave, _ in ranks}) < 2:
        # Behind the last records that moved, records in flight and new records take the same way;
        # but a loop takes records of a wave to any of its edges, which must not be held.
        loops = any(edge.feedback for _, edges in inputs for edge in edges.values())
        ranks = [rank for rank in ranks if moved and (loops or rank <= max(moved))]
    return {at: len(ranks) - ranks.index(rank) for at, rank in places.items() if rank in ranks}


def first_wave(snapshots: Iterable[SubtaskSnapshot]) -> int:
    """Return the earliest wave with records in flight; 0: there are only new records to come."""
    return max((h.wave for s in snapshots for h in s.inflight if h.buffers), default=0)


def _depths(inputs: Sequence[Mapping[int, NewEdge]]) -> list[int]:
    """Return the length of the longest way from each task to a sink, without back-edges."""
    depths = [0] * len(inputs)
    for _ in inputs:
        for consumer, edges in enumerate(inputs):
            for edge in edges.values():
                if not edge.feedback:
                    depths[edge.producer] = max(depths[edge.producer], depths[consumer] + 1)
    return depths


def _waves_held(metadata: CheckpointMetadata, edge: NewEdge) -> set[int]:
    old = old_edges(metadata, edge)
    return {
        handle.wave
        for snapshot in metadata.subtasks
        for handle in snapshot.inflight
        if handle.edge in old and (handle.buffers or handle.watermarks)
    }


def _keeps_channels(edge: NewEdge) -> bool:
    return edge.partitioner.redistribution is Redistribution.CHANNELS


def _is_dealt(metadata: CheckpointMetadata, edge: NewEdge, parallelism: int) -> bool:
    """Another subtask may read new records than replays the records in flight."""
    old = old_edges(metadata, edge)
    before = {metadata.tasks[metadata.edges[i].consumer].parallelism for i in old}
    return before != {parallelism} or is_repartitioned(metadata, old, edge)
