"""A checkpoint from its trigger on: who has acknowledged, and the metadata that comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.channels.events import CheckpointMode
from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    SubtaskSnapshot,
    TaskInfo,
    TransactionRecord,
)

from ..contract.execution import EdgePlan, ExecutionPlan
from ..contract.messages import Acknowledge
from .coordinator_events import CoordinatorEffect, RequestAnswered, SavepointOrder


@dataclass(slots=True)
class PendingCheckpoint:
    """A triggered checkpoint, not complete yet.

    Attributes:
        final: the job ends with this checkpoint, and sinks commit by it even if a savepoint.
        request: number of the user's request, or None.
        mode: how barriers travel.
        savepoint: properties of a savepoint; None: an ordinary checkpoint.
        full: shares no file with older checkpoints.
        drained: a user has ended the input before.
        awaits: transactions to be committed before the savepoint, which every worker has
            acknowledged, is complete.
        covered_by: the checkpoint that will commit `awaits`.
    """

    number: int
    created_ns: int
    final: bool
    request: int | None
    mode: CheckpointMode
    savepoint: SavepointOrder | None = None
    full: bool = False
    drained: bool = False
    awaits: tuple[TransactionRecord, ...] = ()
    covered_by: int | None = None
    acknowledged: dict[int, Acknowledge] = field(default_factory=dict)

    def acknowledge(self, worker: int, message: Acknowledge) -> None:
        """Note a worker's part; a repeat must be equal."""
        known = self.acknowledged.setdefault(worker, message)
        assert known == message, f"worker {worker} acknowledged {self.number} twice, differently"

    def complete(self, workers: Iterable[int]) -> bool:
        """Every worker has acknowledged."""
        return self.acknowledged.keys() >= set(workers)

    @property
    def name(self) -> str:
        """The checkpoint in messages for people."""
        return f"chk-{self.number}" if self.savepoint is None else f"savepoint {self.number}"

    @property
    def commits(self) -> bool:
        """Sinks commit by this checkpoint."""
        return self.savepoint is None or self.final

    @property
    def subtasks(self) -> list[SubtaskSnapshot]:
        """All snapshots, sorted by task and subtask."""
        snapshots = [s for a in self.acknowledged.values() for s in a.subtasks]
        return sorted(snapshots, key=lambda s: (s.task, s.index))

    @property
    def transactions(self) -> list[TransactionRecord]:
        """All pre-committed transactions, by worker."""
        return [t for _, a in sorted(self.acknowledged.items()) for t in a.transactions]

    def answer(self, checkpoint: int | None, failure: str = "") -> list[CoordinatorEffect]:
        """Answer the request, if there is one."""
        if self.request is None:
            return []
        return [RequestAnswered(self.request, checkpoint, failure)]


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
