"""Chains of versions vary, and jobs that go through them have an outcome that can be said
beforehand.
"""

from __future__ import annotations

import random
from dataclasses import replace

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.engine.simulation.jobs.graphs import KEYED, Kind, behind, changed, draw_graph
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.simulation.jobs.versions import (
    Ending,
    draw_rescales,
    rescalable,
    with_changes,
)

RNGS = [random.Random(seed) for seed in range(300)]
GRAPHS = [rescalable(draw_graph(rng, keyed_totals=True), rng, gather=True) for rng in RNGS]
CHAINS = [draw_rescales(rng, graph) for rng, graph in zip(RNGS, GRAPHS, strict=True)]
PAIRS = zip(GRAPHS, CHAINS, strict=True)
CHANGED = [with_changes(*pair, random.Random(seed)) for seed, pair in enumerate(PAIRS)]


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


def test_some_jobs_change_partitioners_of_each_kind_and_some_keep_their_parallelism() -> None:
    changes = [
        (graph.tasks[c.task].inputs[c.port][1], c) for graph, _ in CHANGED for c in graph.changes
    ]
    kinds = {"forward", "rebalance", "shuffle", "hash", "custom"}
    assert {c.partitioner.name for _, c in changes} == kinds | {"broadcast", "range"}
    assert {old.name for old, _ in changes} == kinds
    assert all(old != change.partitioner for old, change in changes)
    widths = [
        (chain[0].parallelism, tuple(task.parallelism for task in graph.tasks))
        for graph, chain in CHANGED
        if graph.changes
    ]
    assert any(new == old for new, old in widths)
    assert any(new != old for new, old in widths)


def test_keyed_tasks_stay_keyed_and_nothing_counts_copies() -> None:
    for graph, _ in CHANGED:
        for change in graph.changes:
            reached = {graph.tasks[i].kind for i in behind(graph.tasks, change.task)}
            assert graph.tasks[change.task].kind not in (*KEYED, Kind.GATHER)
            if isinstance(change.partitioner, Broadcast):
                assert reached <= {Kind.MAP, Kind.DROP, Kind.SINK}, graph.describe()


def test_later_versions_show_the_same_records_but_for_copies() -> None:
    for graph, _ in CHANGED:
        first, later = reference_of(graph), reference_of(changed(graph))
        for sink, records in first.sinks.items():
            pairs = (records, later.sinks[sink])
            one, other = ({r for r in found if r.path not in first.copied} for found in pairs)
            assert one == other


def test_no_order_is_promised_along_an_edge_that_changes() -> None:
    for graph, _ in CHANGED:
        found = reference_of(graph)
        last = {(c.task, c.port) for c in graph.changes if graph.tasks[c.task].kind is Kind.SINK}
        unchanged = reference_of(replace(graph, changes=()))
        assert found.changed >= unchanged.changed
        if last:
            assert found.changed
