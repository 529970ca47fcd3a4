"""Jobs with windows, joins and connect hold under all faults, on the heap and on databases."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.hash import Hash
from headrace.engine.simulation.campaign.oracles import check_output
from headrace.engine.simulation.campaign.scenario import Scenario, draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import (
    JOINS,
    MAX_PARALLELISM,
    WINDOWED,
    WITH_TTL,
    Graph,
    Kind,
    TaskSpec,
)
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.simulation.jobs.versions import draw_rescales
from headrace.engine.simulation.jobs.windows import LATE_STEP
from headrace.engine.simulation.sink import SinkSystem
from headrace.engine.simulation.watch import Violation

KEY = Hash(("key",), MAX_PARALLELISM)


def windowed(kind: Kind) -> Graph:
    """A job with one task of windows."""
    tasks = (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(kind, 3, ((0, KEY),)),
        TaskSpec(Kind.SINK, 2, ((1, KEY),)),
    )
    return Graph(tasks, rows=60, keys=3)


def joined(kind: Kind) -> Graph:
    """A job with one task of two inputs."""
    second = Broadcast() if kind is Kind.CONNECT else KEY
    tasks = (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.SOURCE, 1),
        TaskSpec(kind, 3, ((0, KEY), (1, second))),
        TaskSpec(Kind.SINK, 1, ((2, KEY),)),
    )
    return Graph(tasks, rows=30, keys=3)


GRAPHS = [windowed(kind) for kind in (*WINDOWED[1:], Kind.LATE, *WITH_TTL)]
GRAPHS += [joined(kind) for kind in (*JOINS, Kind.CONNECT, Kind.CO_PROCESS)]


def scenario_of(graph: Graph, seed: int) -> Scenario:
    """A scenario whose graph is this one: faults and settings are drawn, in every other the
    parallelism changes.
    """
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


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.tasks[-2].kind.value)
def test_jobs_hold_under_faults_and_changes_of_parallelism(graph: Graph) -> None:
    violations = {
        seed: report.violation
        for seed in range(4)
        if (report := World(seed, scenario_of(graph, seed)).run()).violation
    }
    assert violations == {}


def test_some_records_come_too_late_and_some_in_time() -> None:
    late: Counter[bool] = Counter()
    for seed in range(3):
        world = World(seed, scenario_of(windowed(Kind.LATE), seed))
        world.run()
        late.update(id % LATE_STEP == 0 for _, (id, *_) in world.env.sinks.rows("sink2"))
    assert min(late[True], late[False]) > 10


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(6 * LATE_STEP + 17, 4)], ""),
        ([(3 * LATE_STEP + 17, 3), (3 * LATE_STEP, 1)], ""),
        ([(3 * LATE_STEP + 17, 3)], "missing"),
        ([(3 * LATE_STEP + 17, 3), (3 * LATE_STEP, 1), (3 * LATE_STEP, 1)], "extra"),
        ([(3 * LATE_STEP + 17, 3), (3 * LATE_STEP + 17, 1)], "told twice"),
    ],
)
def test_what_windows_with_late_records_tell_comes_to_all_records(
    rows: list[tuple[int, int]], told: str
) -> None:
    tasks = (
        TaskSpec(Kind.SOURCE, 1),
        TaskSpec(Kind.LATE, 1, ((0, KEY),)),
        TaskSpec(Kind.SINK, 1, ((1, KEY),)),
    )
    system = SinkSystem()
    system.begin("t", "sink2", 0)
    for id, nth in rows:
        system.transactions["t"].rows.append((id, 0, 2, 0, nth, 0))
    system.prepare("t")
    system.commit("t")
    reference = reference_of(Graph(tasks, rows=4, keys=1))
    found = ""
    try:
        check_output(reference, system, CheckpointMode.UNALIGNED, splits=1)
    except Violation as violation:
        found = str(violation)
    assert told in found
    assert bool(told) == bool(found)
