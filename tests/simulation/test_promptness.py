"""How long an unaligned checkpoint may take does not depend on how slow operators are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.contract.execution import ExecutionPlan
from headrace.engine.simulation.campaign.environment import Settings
from headrace.engine.simulation.campaign.faults import draw_profile, no_faults
from headrace.engine.simulation.campaign.promptness import duration_max_ns
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import simulate
from headrace.engine.simulation.jobs.graph_plans import plan_of
from headrace.engine.simulation.sink import SinkSystem


def _drawn(seed: int) -> tuple[ExecutionPlan, Settings]:
    rng = random.Random(seed)
    scenario = draw_scenario(rng, faults=False, mode=CheckpointMode.UNALIGNED)
    return plan_of(scenario.graph, rng, SinkSystem()), replace(
        scenario.settings, concurrent=1, savepoints=0, databases=frozenset()
    )


def test_slow_operators_do_not_raise_it_and_slow_sinks_do() -> None:
    plan, settings = _drawn(1)
    sinks = frozenset(task.index for task in plan.tasks if task.is_sink)
    others = frozenset(task.index for task in plan.tasks) - sinks
    quick, slow, slow_sink = (
        duration_max_ns(plan, replace(settings, slow_tasks=tasks), no_faults()) or 0
        for tasks in (frozenset[int](), others, sinks)
    )
    assert 0 < quick == slow < slow_sink


def test_nothing_is_promised_of_other_modes_nor_under_faults() -> None:
    plan, settings = _drawn(1)
    aligned = replace(settings, mode=CheckpointMode.ALIGNED)
    assert duration_max_ns(plan, aligned, no_faults()) is None
    assert duration_max_ns(plan, settings, draw_profile(random.Random(1))) is None


@pytest.mark.parametrize("seed", range(20))
def test_unaligned_checkpoints_keep_to_it(seed: int) -> None:
    assert not simulate(seed, faults=False, mode=CheckpointMode.UNALIGNED).violation
