"""What a worker reports of its subtasks to the coordinator: their numbers, and their parts of a checkpoint.

Pure translation of the subtasks' own terms into messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.recovery import metadata
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord

from ..contract import messages as m
from ..contract.execution import ExecutionPlan
from .subtask import Subtask
from .subtask_events import Cut, Hold, SubtaskId
from .worker_events import CheckpointPersisted


def numbers_of(subtask: Subtask) -> m.SubtaskNumbers:
    """A subtask's numbers for the next heartbeat."""
    s = subtask.statistics()
    return m.SubtaskNumbers(
        task=subtask.id.task,
        subtask=subtask.id.subtask,
        rows_in=s.rows_in,
        rows_out=s.rows_out,
        busy_ns=s.busy_ns,
        backpressured_ns=s.backpressured_ns,
        idle_ns=s.idle_ns,
        queued_bytes=s.input_queued_bytes + s.output_queued_bytes,
        window_bytes=s.window_bytes,
        watermark_ns=s.watermark_ns,
        rows_late=s.rows_late,
    )


def acknowledge(
    plan: ExecutionPlan, event: CheckpointPersisted, cuts: Sequence[Cut], now_ns: int
) -> m.Acknowledge:
    """The worker's part of a checkpoint: where its `cuts` stood, and what of them was persisted."""
    return m.Acknowledge(
        epoch=event.epoch,
        checkpoint=event.checkpoint,
        subtasks=[
            SubtaskSnapshot(
                task=cut.subtask.task,
                index=cut.subtask.subtask,
                finished=cut.finished,
                states=event.states[cut.subtask],
                inflight=event.inflight[cut.subtask],
                received=list(cut.received),
                sent=list(cut.sent),
                start_delay_ns=cut.start_delay_ns,
                alignment_ns=cut.alignment_ns,
                sync_ns=event.sync_ns[cut.subtask],
                async_ns=event.async_ns,
                databases=event.databases.get(cut.subtask, []),
                end_to_end_ns=max(0, now_ns - cut.created_ns),
                holds=[_hold(plan, cut.subtask, hold) for hold in cut.holds],
                watermark=cut.watermark_ns,
            )
            for cut in cuts
        ],
        transactions=[
            TransactionRecord(sink, transaction.id, transaction.payload)
            for cut in cuts
            for sink, transaction in cut.transactions
        ],
    )


def _hold(plan: ExecutionPlan, subtask: SubtaskId, hold: Hold) -> metadata.Hold:
    """Name channel or operators as the user knows them."""
    if hold.channel is not None:
        edge, producer, consumer = hold.channel
        name = f"{plan.edges[edge].key} {producer}>{consumer}"
        return metadata.Hold(hold.kind, name, hold.held_ns)
    task = plan.tasks[subtask.task]
    # Only what has outside effects makes an unaligned cut wait, and what a chain has before its sink is not the user's.
    operators = task.operators[-1:] if task.is_sink else task.operators
    return metadata.Hold(hold.kind, " > ".join(o.name for o in operators), hold.held_ns)
