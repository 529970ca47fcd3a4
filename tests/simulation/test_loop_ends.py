"""Ends of loops are found when nothing is in the loop any more, and not before."""

from __future__ import annotations

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.campaign import loop_ends
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graph_plans import cycle_of

from .test_loops import looped, scenario_of


def test_the_tasks_of_a_loop_are_those_up_to_its_back_edge() -> None:
    world = World(0, scenario_of(looped(2), 0))
    assert cycle_of(world.env.plan, 1) == {1, 2, 3}


def test_a_loop_that_is_ended_early_is_caught_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_ends, "_is_over", lambda *_: True)
    scenario = scenario_of(looped(2), 0, CheckpointMode.UNALIGNED)
    assert "enters a loop that ended" in World(0, scenario).run().violation


def test_a_loop_whose_end_nobody_finds_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_ends, "_is_over", lambda *_: False)
    scenario = scenario_of(looped(1, rows=4), 0, CheckpointMode.UNALIGNED)
    assert World(0, scenario).run().violation.startswith("no progress")
