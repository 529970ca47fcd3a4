"""The metadata of a checkpoint that every worker has acknowledged."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    SubtaskSnapshot,
    TaskInfo,
    TransactionRecord,
)

from ..contract.execution import EdgePlan, ExecutionPlan
from .pending import PendingCheckpoint


def metadata_of(
    plan: ExecutionPlan,
    pending: PendingCheckpoint,
    transactions: list[TransactionRecord],
    *,
    epoch: int,
    now_ns: int,
    wave: int = 0,
) -> CheckpointMetadata:
    """The metadata of a checkpoint, acknowledged by every worker.

    `wave`: under way at the cut.
    """
    return CheckpointMetadata(
        job=plan.job,
        checkpoint=pending.number,
        epoch=epoch,
        mode=pending.mode.value,
        savepoint=pending.savepoint is not None,
        created_ms=pending.created_ns // 1_000_000,
        duration_ns=max(0, now_ns - pending.created_ns),
        max_parallelism=plan.max_parallelism,
        tasks=[
            TaskInfo(
                task.name,
                [o.name for o in task.operators],
                [o.name for o in task.operators if o.stateful],
                task.parallelism,
            )
            for task in plan.tasks
        ],
        edges=[_edge_info(edge) for edge in plan.edges],
        subtasks=[_in_wave(snapshot, wave) for snapshot in pending.subtasks],
        transactions=transactions,
        drained=pending.drained,
    )


def _in_wave(snapshot: SubtaskSnapshot, wave: int) -> SubtaskSnapshot:
    """Note the wave of the records in channels; records left to replay have theirs."""
    if not wave:
        return snapshot
    inflight = [h if h.side == "replay" else replace(h, wave=wave) for h in snapshot.inflight]
    return replace(snapshot, inflight=inflight)


def _edge_info(edge: EdgePlan) -> EdgeInfo:
    partitioner = edge.partitioner
    return EdgeInfo(
        key=edge.key,
        producer=edge.producer,
        consumer=edge.consumer,
        partitioning=partitioner.name,
        columns=list(partitioner.key_columns),
        parameters=list(partitioner.parameters),
    )
