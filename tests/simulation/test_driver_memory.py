"""A driver of a job under backpressure holds as much after many checkpoints as after few."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import pytest

from headrace.engine.contract.execution import ExecutionPlan
from headrace.engine.coordinator.coordinator import Coordinator
from headrace.engine.coordinator.coordinator_events import (
    CoordinatorEffect,
    CoordinatorEvent,
    Notice,
)
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.scenario import Scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.simulation.scheduler import MILLISECOND_NS

from .interrupted import scenario

HALF, MANY = 60, 130
#: The plan of a simulated job leads to the whole simulation.
_CODE = (type, ModuleType, FunctionType, ExecutionPlan, partial)


def held(machine: Coordinator) -> int:
    """Objects that `machine` keeps alive: those of the collector, without code and plan."""
    seen: dict[int, object] = {}
    found: list[object] = [machine]
    while found:
        one = found.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            found += [other for other in gc.get_referents(one) if not isinstance(other, _CODE)]
    return len(seen)


def backpressured() -> Scenario:
    """Full queues before slow tasks, and a checkpoint each few milliseconds."""
    small = scenario(0, (2,))
    graph = replace(small.graph, rows=1_000)
    settings = replace(small.settings, checkpoint_interval_ns=4 * MILLISECOND_NS)
    return Scenario(graph, reference_of(graph), settings, no_faults(), ())


class Weighed(World):
    """One run, whose coordinator is weighed at each checkpoint."""

    def __init__(self) -> None:
        super().__init__(0, backpressured())
        self.weights: list[int] = []
        self.scheduler.after(MILLISECOND_NS, self._look)

    def _look(self) -> None:
        if self.finished:
            return
        self.scheduler.after(MILLISECOND_NS, self._look)
        process = self.coordinator
        if process is not None and process.machine and process.completed > len(self.weights):
            self.weights.append(held(process.machine))


def growth() -> float:
    """The heaviest of many checkpoints over the heaviest of the first, once queues are full."""
    world = Weighed()
    assert world.run().violation == ""
    assert len(world.weights) >= MANY
    return max(world.weights[HALF:]) / max(world.weights[:HALF])


def test_a_driver_does_not_grow_with_its_checkpoints() -> None:
    assert growth() < 1.25


@pytest.mark.mutant
def test_a_driver_that_keeps_the_metadata_of_all_checkpoints_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Coordinator.step

    def keeps(self: Coordinator, event: CoordinatorEvent, now_ns: int) -> list[CoordinatorEffect]:
        effects = step(self, event, now_ns)
        notices = [effect for effect in effects if isinstance(effect, Notice)]
        self.__dict__.setdefault("kept", []).append([one.checkpoint for one in notices])
        return effects

    monkeypatch.setattr(Coordinator, "step", keeps)
    assert growth() > 1.5
