"""Tasks that look at time stand wherever what they put out can be said beforehand, and so do
connected ones.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.broadcast import Broadcast
from headrace.engine.contract.execution import EventTimeRole
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.jobs.graph_plans import plan_of
from headrace.engine.simulation.jobs.graphs import ANEW, JOINS, TIMED, Graph, Kind, behind
from headrace.engine.simulation.jobs.loops import body_of
from headrace.engine.simulation.sink import SinkSystem


@functools.cache
def graphs(mode: CheckpointMode) -> list[Graph]:
    rngs = [random.Random(f"scenario {seed}") for seed in range(900)]
    return [draw_scenario(rng, mode=mode).graph for rng in rngs]


def placed(*kinds: Kind) -> Iterator[tuple[Graph, int]]:
    """Tasks of these kinds: (graph, index)."""
    for graph in graphs(CheckpointMode.UNALIGNED):
        for index, task in enumerate(graph.tasks):
            if task.kind in kinds:
                yield graph, index


def test_every_kind_is_drawn_in_several_places() -> None:
    kinds = Counter(task.kind for graph in graphs(CheckpointMode.UNALIGNED) for task in graph.tasks)
    for kind in (*TIMED, Kind.ALARMS, Kind.CONNECT, Kind.CO_PROCESS):
        assert kinds[kind] >= 5, kind
    behind_timed = {
        graph.tasks[later].kind
        for graph, index in placed(*TIMED)
        for later in behind(graph.tasks, index)[1:]
    }
    assert {Kind.HISTORY, Kind.TOTALS, Kind.ALARMS, Kind.MAP, Kind.DROP} <= behind_timed


def test_watermarks_are_made_at_all_sources_where_a_task_acts_on_them() -> None:
    for graph, index in placed(*TIMED):
        plan = plan_of(graph, random.Random(0), SinkSystem())
        assert all(t.time is EventTimeRole.MAKES for t in plan.tasks if t.is_source)
        assert plan.tasks[index].time is EventTimeRole.ACTS


def test_event_time_is_that_of_records_as_they_left_their_sources() -> None:
    for graph, index in placed(*ANEW, Kind.ALARMS, Kind.CONNECT, Kind.CO_PROCESS):
        reached = {graph.tasks[later].kind for later in behind(graph.tasks, index)[1:]}
        assert not reached & set(TIMED), graph.describe()


def test_joins_and_co_processors_have_two_inputs() -> None:
    two = placed(*JOINS, Kind.CO_PROCESS)
    assert all(len(graph.tasks[index].inputs) > 1 for graph, index in two)


def heads(graph: Graph) -> list[int]:
    return [index for index, task in enumerate(graph.tasks) if task.kind is Kind.HEAD]


def test_nothing_counts_what_is_told_as_often_as_there_are_subtasks_or_in_pools() -> None:
    for graph, index in placed(Kind.CONNECT, Kind.LATE):
        # Of the loops' bodies `with_loops` takes care: they are not drawn where they would count.
        bodies = {task for head in heads(graph) for task in body_of(graph, head)}
        after = set(behind(graph.tasks, index)[1:]) - bodies
        reached = {graph.tasks[later].kind for later in after}
        failing = {Kind.ROUTES, Kind.SKIPS, Kind.DEAD}
        allowed = failing if graph.tasks[index].kind is Kind.CONNECT else set()
        maps = {Kind.MAP, Kind.BATCHES, Kind.ASKS, Kind.DROP}
        loops = {Kind.HEAD, Kind.AGAIN, Kind.LEAVE}
        assert reached <= {*maps, *loops, Kind.SINK, *allowed}, graph.describe()
    for graph, index in placed(Kind.CONNECT):
        *main, (_, last) = graph.tasks[index].inputs
        assert isinstance(last, Broadcast)
        assert main


def test_where_records_may_come_twice_only_alarms_are_drawn() -> None:
    found = {t.kind for g in graphs(CheckpointMode.AT_LEAST_ONCE) for t in g.tasks}
    assert not found & {*TIMED, Kind.CONNECT, Kind.CO_PROCESS}
    assert Kind.ALARMS in found
