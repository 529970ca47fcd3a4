"""The plan of a random job says what its graph says."""

from __future__ import annotations

import random

from headrace.engine.simulation.jobs.graph_plans import plan_of
from headrace.engine.simulation.jobs.graphs import draw_graph
from headrace.engine.simulation.sink import SinkSystem


def test_the_plan_has_the_graph_s_tasks_and_edges() -> None:
    for graph in (draw_graph(random.Random(seed), keyed_totals=True) for seed in range(50)):
        plan = plan_of(graph, random.Random(0), SinkSystem())
        assert [task.parallelism for task in plan.tasks] == [t.parallelism for t in graph.tasks]
        assert len(plan.edges) == sum(len(task.inputs) for task in graph.tasks)
        for task in plan.tasks:
            assert all(plan.edges[edge].consumer == task.index for edge in task.inputs)
            assert all(plan.edges[edge].producer == task.index for edge in task.outputs)
