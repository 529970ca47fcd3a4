"""Draining in a simulated world: a user ends the job's input midway.

Exactly the records read by then must come out, processed to the end. The sources' positions in the
last checkpoint tell which. The request dies with its driver: then the job goes on, and its whole
input comes out, even if some sources had ended already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.recovery import catalog

from ...coordinator import coordinator_events as d
from ...storage.snapshots import read_states
from ..jobs.graphs import Kind
from ..jobs.reference import Reference, reference_of
from ..scheduler import MILLISECOND_NS
from ..watch import Violation
from .coordinator_process import CoordinatorProcess

if TYPE_CHECKING:
    from .world import World

#: Whoever finds no job asks again after this time.
_AGAIN_NS = 3 * MILLISECOND_NS


class Draining:
    """The drain request of a world, and the output that must follow."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: list[CoordinatorProcess] = []

    def schedule(self) -> None:
        """Request the drain at the scenario's time."""
        at_ns = self._world.scenario.drain_ns
        if at_ns is not None:
            self._world.scheduler.at(at_ns, self._ask)

    def _ask(self) -> None:
        coordinator = self._world.coordinator
        if self._world.finished:
            return
        if coordinator is None or not coordinator.alive or coordinator.machine is None:
            self._world.scheduler.after(_AGAIN_NS, self._ask)
            return
        self._asked.append(coordinator)
        coordinator.post(d.StopRequested(d.StopKind.DRAIN))
        self._world.coverage.count("drains asked for")

    def reference(self) -> Reference:
        """Return the ended job's mandatory output. Raises Violation."""
        world = self._world
        whole = world.scenario.reference
        if not self._asked:
            return whole
        metadata, _ = catalog.newest_valid(world.env.storage, world.env.plan.job)
        if metadata is None:
            raise Violation("the job has finished without a checkpoint")
        if not any(metadata.epoch in process.epochs for process in self._asked):
            return whole
        if not all(snapshot.finished for snapshot in metadata.subtasks):
            raise Violation(f"chk-{metadata.checkpoint} of a drained job is not of its end")
        graph = world.scenario.graph
        read: dict[int, dict[int, int]] = {
            index: {} for index, task in enumerate(graph.tasks) if task.kind is Kind.SOURCE
        }
        for snapshot in metadata.subtasks:
            if snapshot.task in read:
                states = read_states(
                    world.env.storage,
                    metadata.job,
                    snapshot.states,
                    max_parallelism=metadata.max_parallelism,
                    parallelism=metadata.tasks[snapshot.task].parallelism,
                    subtask=snapshot.index,
                )
                for state in states.get(f"source{snapshot.task}", []):
                    if state.name == "next":
                        read[snapshot.task] |= {
                            row["split"]: row["next"] for row in state.table.to_pylist()
                        }
        drained = reference_of(graph, read)
        if drained.total_rows < whole.total_rows:
            world.coverage.count("jobs drained before their end")
        return drained
