"""The ends of loops in a simulated world, found by somebody who sees everything.

A loop has ended when its entries have and no record of it is anywhere: each channel's consumer is
done with all that its producer has ever put out, no work runs, and nothing is left to replay. Then
its head is told (`EndLoop`), as a coordinator would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...contract.execution import EdgePlan, ExecutionPlan, SubtaskId
from ...worker.subtask import Subtask
from ...worker.worker import Phase
from ..scheduler import MILLISECOND_NS
from .worker_process import WorkerProcess

if TYPE_CHECKING:
    from .world import World

_EVERY_NS = 2 * MILLISECOND_NS


class LoopEnds:
    """Looks for loops that have ended, again and again."""

    def __init__(self, world: World) -> None:
        self._world = world

    def schedule(self) -> None:
        """Look from now on, if the job has loops."""
        if any(edge.feedback for edge in self._world.env.plan.edges):
            self._world.scheduler.after(_EVERY_NS, self._look)

    def _look(self) -> None:
        world = self._world
        if world.finished:
            return
        world.scheduler.after(_EVERY_NS, self._look)
        running = [w for w in world.workers if w.alive and w.machine.phase is Phase.RUNNING]
        epoch = max((w.machine._running().epoch for w in running), default=0)
        running = [w for w in running if w.machine._running().epoch == epoch]
        if running:
            self._end_loops(running[0].env.plan, running)

    def _end_loops(self, plan: ExecutionPlan, running: Iterable[WorkerProcess]) -> None:
        holders = {id: w for w in running for id in w.machine._running().subtasks}
        subtasks = {id: w.machine._running().subtasks[id] for id, w in holders.items()}
        if len(subtasks) < sum(task.parallelism for task in plan.tasks):
            return
        for head in sorted({edge.consumer for edge in plan.edges if edge.feedback}):
            heads = [id for id in sorted(subtasks) if id.task == head]
            cycle = _cycle(plan, head)
            if all(subtasks[id]._finished for id in heads) or not _is_over(plan, cycle, subtasks):
                continue
            self._world.coverage.count("loops that ended")
            for id in heads:
                holders[id].end_loop(id)


def _cycle(plan: ExecutionPlan, head: int) -> set[int]:
    """The tasks of the loop: those from its head to its back-edges, which follow each other."""
    last = max(edge.producer for edge in plan.edges if edge.feedback and edge.consumer == head)
    return set(range(head, last + 1))


def _is_over(plan: ExecutionPlan, cycle: set[int], subtasks: Mapping[SubtaskId, Subtask]) -> bool:
    return all(
        _is_passive(subtask, plan.edges, cycle, subtasks)
        for id, subtask in subtasks.items()
        if id.task in cycle
    )


def _is_passive(
    subtask: Subtask,
    edges: tuple[EdgePlan, ...],
    cycle: set[int],
    subtasks: Mapping[SubtaskId, Subtask],
) -> bool:
    if subtask._running is not None or subtask._wave or subtask._replay.pending_ports:
        return False
    for channel, end in subtask._gate.channels.items():
        producer = edges[channel.edge].producer
        sender = subtasks[SubtaskId(producer, channel.producer)]
        if end.committed != sender._subpartitions[channel].tail:
            return False
        if producer not in cycle and not end.ended:
            return False
    return True
