"""Checkpoints of a job `numbers -> totals`, and the plans that they are given out to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.assignment import NewTask, assign
from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    StateHandle,
    SubtaskSnapshot,
    TaskInfo,
)
from headrace.recovery.redistribution import NewEdge

GROUPS = 16
BY_KEY = Hash(("key",), GROUPS)
BY_FUNCTION = Custom(lambda batch, consumers: [0] * batch.num_rows)
parallelisms = st.integers(1, GROUPS)


def info(name: str, parallelism: int) -> TaskInfo:
    return TaskInfo(name, [name], [name], parallelism)


def snapshot(
    task: int,
    index: int,
    *states: StateHandle,
    finished: bool = False,
    inflight: Sequence[ChannelStateHandle] = (),
) -> SubtaskSnapshot:
    return SubtaskSnapshot(task, index, finished, list(states), [], [], list(inflight))


def checkpoint(tasks: list[TaskInfo], *subtasks: SubtaskSnapshot) -> CheckpointMetadata:
    return CheckpointMetadata(
        job="job",
        checkpoint=7,
        epoch=1,
        mode="aligned",
        savepoint=False,
        created_ms=0,
        duration_ns=0,
        max_parallelism=GROUPS,
        tasks=tasks,
        edges=[EdgeInfo("numbers->totals/0", 0, 1)] if len(tasks) > 1 else [],
        subtasks=list(subtasks),
        transactions=[],
    )


def alone(name: str, parallelism: int) -> NewTask:
    """A task without inputs."""
    return NewTask(info(name, parallelism), [[] for _ in range(parallelism)], {})


def joined(producers: int, consumers: int, partitioner: Partitioner = BY_KEY) -> list[NewTask]:
    """numbers -> totals, every producer to every consumer."""
    channels = [[(0, producer) for producer in range(producers)] for _ in range(consumers)]
    edge = NewEdge("numbers->totals/0", 0, partitioner)
    return [alone("numbers", producers), NewTask(info("totals", consumers), channels, {0: edge})]


def in_flight(producers: int, consumers: int) -> CheckpointMetadata:
    """Of every channel one stored record before the receiver, and one behind it in the sender's
    queue.
    """
    subtasks = []
    for task, count in ((0, producers), (1, consumers)):
        for index in range(count):
            mine = [
                ChannelStateHandle(0, p, c, side, first, [stored(p, c, first)], ended=False)
                for p in range(producers)
                for c in range(consumers)
                for side, first, owner in (("input", 0, (1, c)), ("output", 1, (0, p)))
                if owner == (task, index)
            ]
            subtasks.append(snapshot(task, index, inflight=mine))
    return checkpoint([info("numbers", producers), info("totals", consumers)], *subtasks)


def stored(producer: int, consumer: int, first: int) -> BufferHandle:
    return BufferHandle(f"chk-7/{producer}-{consumer}-{first}", 8, 1, "0" * 16, 1, 0, 1)


def replayed(metadata: CheckpointMetadata, new: list[NewTask]) -> list[list[BufferHandle]]:
    """By new consumer: the stored buffers that it replays, in order."""
    assigned = assign(metadata, new, GROUPS)
    return [[b for h in s.inflight for b in h.buffers] for s in assigned if s.task == 1]
