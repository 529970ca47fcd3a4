"""The oracle of rescales sees what is lost, doubled or given to the wrong subtask."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import Graph
from headrace.recovery import assignment, redistribution


def rescaled_run(seed: int) -> str:
    """A run without faults whose chain of versions is as drawn."""
    scenario = draw_scenario(random.Random(f"scenario {seed}"), faults=False)
    assert isinstance(scenario.graph, Graph)
    return World(seed, scenario).run().violation


def seeds() -> list[int]:
    """The first few that rescale."""
    found = [
        seed
        for seed in range(120)
        if draw_scenario(random.Random(f"scenario {seed}"), faults=False).rescales
    ]
    return found[:30]


def changed_seeds() -> list[int]:
    """Some whose partitioners change; first one with records in flight on such an edge."""
    found = [
        seed
        for seed in range(400)
        if draw_scenario(random.Random(f"scenario {seed}"), faults=False).graph.changes
    ]
    return [480, *found[:12]]


def test_records_that_go_where_the_old_partitioner_sent_them_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redistribution, "is_repartitioned", lambda *_: False)
    assert any("gets records of" in rescaled_run(seed) for seed in changed_seeds())


def test_a_record_that_is_filtered_wrongly_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = redistribution._filtered

    def shifted(handle: Any, parallelism: int, subtask: int) -> Any:
        return whole(handle, parallelism, (subtask + 1) % parallelism)

    monkeypatch.setattr(redistribution, "_filtered", shifted)
    assert any("gets records of" in rescaled_run(seed) for seed in seeds())


def test_keyed_state_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "_handles", lambda *_, **__: [])
    assert any("keyed state: lost" in rescaled_run(seed) for seed in seeds())
