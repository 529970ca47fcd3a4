"""Windows and joins in simulated jobs: what they tell, and that jobs with them hold under all faults."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners import Hash
from headrace.engine.simulation.event_time import time_of
from headrace.engine.simulation.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.reference import reference_of
from headrace.engine.simulation.scenario import Scenario, draw_scenario
from headrace.engine.simulation.source import key_of, records_of
from headrace.engine.simulation.versions import draw_rescales
from headrace.engine.simulation.windows import DISTANCE_NS, pair_of, pairs_of
from headrace.engine.simulation.world import World

KEY = Hash(("key",), MAX_PARALLELISM)
WINDOWS = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.WINDOWS, 3, ((0, KEY),)),
        TaskSpec(Kind.SINK, 2, ((1, KEY),)),
    ),
    rows=60,
    keys=3,
)
JOIN = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.SOURCE, 1),
        TaskSpec(Kind.JOIN, 3, ((0, KEY), (1, KEY))),
        TaskSpec(Kind.SINK, 1, ((2, KEY),)),
    ),
    rows=40,
    keys=3,
)


def test_windows_tell_what_timers_tell() -> None:
    tasks = list(WINDOWS.tasks)
    tasks[1] = replace(tasks[1], kind=Kind.BUCKETS)
    timers = replace(WINDOWS, tasks=tuple(tasks))
    assert reference_of(WINDOWS).sinks == reference_of(timers).sinks


def test_a_join_tells_every_pair_and_who_met_none() -> None:
    far = next(i for i in range(10, 100) if time_of(i) - time_of(0) > DISTANCE_NS)
    told = pairs_of(Counter({(0, 1): 2, (far, 1): 1}), Counter({(1, 1): 1, (0, 2): 1}))
    assert told == {
        (pair_of(0, 1), 1): 2,
        (pair_of(far, -1), 1): 1,
        (pair_of(-1, 0), 2): 1,
    }


def test_the_reference_joins_the_first_input_with_the_rest() -> None:
    left, right = (
        Counter((id, key_of(id, JOIN.keys)) for id in records_of(source, JOIN.rows))
        for source in (0, 1)
    )
    found = Counter({(r.id, r.key): n for r, n in reference_of(JOIN).sinks["sink3"].items()})
    assert found == pairs_of(left, right)
    assert any(id > 2_000_000 and id % 1_000_003 > 1 for id, _ in found), "some met"


def scenario_of(graph: Graph, seed: int) -> Scenario:
    """A scenario whose graph is this one: faults and settings are drawn, in every other the parallelism changes."""
    drawn = draw_scenario(random.Random(f"windows {seed}"))
    while drawn.settings.mode is CheckpointMode.AT_LEAST_ONCE:
        seed += 1_000
        drawn = draw_scenario(random.Random(f"windows {seed}"))
    rescales = draw_rescales(random.Random(seed), graph) if seed % 2 else ()
    databases = range(len(graph.tasks)) if seed % 4 >= 2 else ()
    settings = replace(
        drawn.settings,
        workers=1 + seed % 3,
        slow_tasks=frozenset(),
        databases=frozenset(databases),
    )
    return Scenario(graph, reference_of(graph), settings, drawn.profile, rescales)


@pytest.mark.parametrize("graph", [WINDOWS, JOIN], ids=["windows", "join"])
def test_jobs_hold_under_faults_and_changes_of_parallelism(graph: Graph) -> None:
    violations = {
        seed: report.violation
        for seed in range(10)
        if (report := World(seed, scenario_of(graph, seed)).run()).violation
    }
    assert violations == {}
