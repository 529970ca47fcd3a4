"""Jobs with loops hold under all faults; the loops are those of the description, unrolled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.simulation.campaign.scenario import Scenario, draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.loops import (
    ROUNDS_MAX,
    body_of,
    head_of,
    rounds_had,
    rounds_of,
    with_loops,
)
from headrace.engine.simulation.jobs.operators import PATH_STEP
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.simulation.jobs.versions import draw_rescales

KEY = Hash(("key",), MAX_PARALLELISM)


def looped(parallelism: int, rows: int = 60) -> Graph:
    """A loop around a keyed task."""
    tasks = (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.HEAD, parallelism, ((0, Rebalance()),), ((3, Rebalance()),)),
        TaskSpec(Kind.HISTORY, 2, ((1, KEY),)),
        TaskSpec(Kind.AGAIN, 2, ((2, Forward()),)),
        TaskSpec(Kind.LEAVE, 2, ((2, Forward()),)),
        TaskSpec(Kind.SINK, 1, ((4, KEY),)),
    )
    return Graph(tasks, rows=rows, keys=3)


def scenario_of(graph: Graph, seed: int, mode: CheckpointMode | None = None) -> Scenario:
    """A scenario whose graph is this one; in every other the parallelism changes."""
    drawn = draw_scenario(random.Random(f"loops {seed}"), mode=mode)
    rescales = draw_rescales(random.Random(seed), graph) if seed % 2 else ()
    settings = replace(
        drawn.settings, workers=1 + seed % 2, slow_tasks=frozenset(), databases=frozenset()
    )
    return Scenario(graph, reference_of(graph), settings, drawn.profile, rescales)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


@pytest.mark.parametrize("mode", list(CheckpointMode))
def test_loops_hold_under_faults_and_changes_of_parallelism(mode: CheckpointMode) -> None:
    counted: Counter[str] = Counter()
    for seed in range(4):
        report = World(seed, scenario_of(looped(2), seed, mode)).run()
        assert report.violation == "", seed
        counted.update(report.coverage)
    assert counted["ends of loops told"] >= 4
    assert counted["records persisted in flight, input"] > 0


def test_records_take_one_to_three_rounds() -> None:
    ids = np.arange(60)
    assert Counter(rounds_of(ids, 1).tolist()) == {1: 20, 2: 20, 3: 20}
    graph = looped(2)
    assert (head_of(graph, 3), head_of(graph, 4), body_of(graph, 1)) == (1, 1, [2])
    (out,) = reference_of(graph).sinks.values()
    assert sum(out.values()) == graph.rows
    for record in out:
        assert rounds_had(record.path, 1) == rounds_of(record.id, 1)
        assert record.path % PATH_STEP == 3
        assert record.by == 2


def test_places_of_a_keyed_body_count_every_round() -> None:
    graph = looped(2)
    places = reference_of(graph).places
    rounds = sum(int(rounds_of(id, 1)) for id in range(graph.rows))
    assert sum(places.values()) == rounds


def test_a_loop_is_put_in_front_of_a_task_and_nothing_else_changes() -> None:
    before = Graph(
        (
            TaskSpec(Kind.SOURCE, 2),
            TaskSpec(Kind.MAP, 3, ((0, Rebalance()),)),
            TaskSpec(Kind.SINK, 1, ((1, KEY),)),
        ),
        rows=24,
        keys=3,
    )
    ids = Counter(r.id for r in reference_of(before).sinks["sink2"].elements())
    heads = 0
    for seed in range(40):
        graph, _ = with_loops(before, (), random.Random(seed))
        found = [index for index, task in enumerate(graph.tasks) if task.again]
        heads += len(found)
        for index, task in enumerate(graph.tasks):
            assert all(producer < index for producer, _ in task.inputs)
            assert all(graph.tasks[p].kind is Kind.AGAIN for p, _ in task.again)
        (sink,) = reference_of(graph).sinks.values()
        assert Counter(record.id for record in sink.elements()) == ids
        assert all(rounds_had(r.path, head) <= ROUNDS_MAX for r in sink for head in found)
    assert heads > 10
