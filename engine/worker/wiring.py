"""A worker's subtasks and the channels between them, from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.channels.buffer import ChannelId
from headrace.channels.events import MIN_WATERMARK
from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot

from ..contract.execution import EdgePlan, ExecutionPlan, SubtaskId, TaskPlan
from .subtask_spec import EventTimeSpec, Limits, SubtaskSpec


def subtasks_of(plan: ExecutionPlan, slots: Iterable[int]) -> list[SubtaskId]:
    """Return all subtasks that live in `slots`, sorted.

    Slot i holds subtask i of every task that has so many.
    """
    held = sorted(slots)
    return [SubtaskId(t.index, slot) for t in plan.tasks for slot in held if slot < t.parallelism]


def channels_from(plan: ExecutionPlan, edge: EdgePlan, producer: int) -> list[ChannelId]:
    """Return the channels of subtask `producer` on the edge, in order of targets."""
    producers, consumers = _parallelism(plan, edge)
    targets = edge.partitioner.consumers(producer, producers, consumers)
    return [ChannelId(edge.index, producer, consumer) for consumer in targets]


def channels_to(plan: ExecutionPlan, edge: EdgePlan, consumer: int) -> list[ChannelId]:
    """The channels into consumer subtask `consumer` on the edge, by producer."""
    producers, _ = _parallelism(plan, edge)
    return [
        channel
        for producer in range(producers)
        for channel in channels_from(plan, edge, producer)
        if channel.consumer == consumer
    ]


def subtask_specs(
    plan: ExecutionPlan,
    slots: Iterable[int],
    limits: Limits,
    restore: Sequence[SubtaskSnapshot],
    wave: int = 0,
) -> list[SubtaskSpec]:
    """Specify the subtasks of a worker with `slots`.

    `restore`: snapshots of these subtasks, in terms of this plan. `wave`: of the replay.
    """
    snapshots = {SubtaskId(s.task, s.index): s for s in restore}
    return [
        _spec(plan, plan.tasks[id.task], id, limits, snapshots.get(id), wave)
        for id in subtasks_of(plan, slots)
    ]


def _spec(
    plan: ExecutionPlan,
    task: TaskPlan,
    id: SubtaskId,
    limits: Limits,
    snapshot: SubtaskSnapshot | None,
    wave: int,
) -> SubtaskSpec:
    return SubtaskSpec(
        id=id,
        is_source=task.is_source,
        is_sink=task.is_sink,
        inputs=[channels_to(plan, plan.edges[e], id.subtask) for e in task.inputs],
        outputs=[channels_from(plan, plan.edges[e], id.subtask) for e in task.outputs],
        limits=limits,
        finished=snapshot is not None and snapshot.finished,
        received=_by_channel(snapshot.received if snapshot else []),
        sent=_by_channel(snapshot.sent if snapshot else []),
        replay=snapshot.inflight if snapshot else (),
        wave=wave,
        time=EventTimeSpec(
            role=task.time,
            idle_after_ns=task.idle_after_ns,
            restored=snapshot is not None,
            watermark_ns=snapshot.watermark if snapshot else MIN_WATERMARK,
        ),
        batch=task.batch,
        feedback=frozenset(p for p, e in enumerate(task.inputs) if plan.edges[e].feedback),
    )


def _parallelism(plan: ExecutionPlan, edge: EdgePlan) -> tuple[int, int]:
    return plan.tasks[edge.producer].parallelism, plan.tasks[edge.consumer].parallelism


def _by_channel(positions: Iterable[ChannelPosition]) -> dict[ChannelId, ChannelPosition]:
    return {ChannelId(p.edge, p.producer, p.consumer): p for p in positions}
