"""Chains of versions vary, and jobs that go through them have an outcome that can be said beforehand."""

from __future__ import annotations

import random

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.engine.simulation.jobs.graphs import KEYED, Kind, draw_graph
from headrace.engine.simulation.jobs.versions import Ending, draw_rescales, rescalable

RNGS = [random.Random(seed) for seed in range(300)]
GRAPHS = [rescalable(draw_graph(rng, keyed_totals=True), rng, gather=True) for rng in RNGS]
CHAINS = [draw_rescales(rng, graph) for rng, graph in zip(RNGS, GRAPHS, strict=True)]


def test_every_way_to_end_and_one_to_three_versions_occur() -> None:
    assert {rescale.ending for chain in CHAINS for rescale in chain} == set(Ending)
    assert {len(chain) for chain in CHAINS} == {1, 2, 3}


def test_operators_get_parallelisms_of_their_own_and_workers_enough_to_do() -> None:
    for graph, chain in zip(GRAPHS, CHAINS, strict=True):
        for rescale in chain:
            assert len(rescale.parallelism) == len(graph.tasks)
            assert 1 <= rescale.workers <= max(rescale.parallelism)
    assert any(len(set(r.parallelism)) > 1 for chain in CHAINS for r in chain)


def test_no_keyed_task_reads_what_was_copied_and_some_tasks_gather() -> None:
    for graph in GRAPHS:
        copied: set[int] = set()
        for index, task in enumerate(graph.tasks):
            broadcast = any(isinstance(edge, Broadcast) for _, edge in task.inputs)
            if broadcast or any(producer in copied for producer, _ in task.inputs):
                copied.add(index)
                assert task.kind not in KEYED
    assert any(task.kind is Kind.GATHER for graph in GRAPHS for task in graph.tasks)
