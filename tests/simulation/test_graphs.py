"""Random jobs are valid, varied, and the same for the same seed."""

from __future__ import annotations

import random

import pyarrow as pa

from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.registry import wire_names
from headrace.engine.simulation.jobs.graphs import (
    KEYED,
    RANGES,
    TIMED,
    Kind,
    draw_graph,
    with_ranges,
)
from headrace.engine.simulation.jobs.operators import Drop, is_dropped
from headrace.engine.simulation.jobs.source import SCHEMA

GRAPHS = [draw_graph(random.Random(seed), keyed_totals=True) for seed in range(300)]


def test_the_same_seed_draws_the_same_job() -> None:
    assert GRAPHS[7] == draw_graph(random.Random(7), keyed_totals=True)


#: They take the place of others: test_timed_graphs.py, test_versions.py and the kinds' own files.
OF_MAPS = {Kind.BATCHES, Kind.ASKS, Kind.ROUTES, Kind.SKIPS, Kind.DEAD}
LATER = {
    Kind.HEAD,
    Kind.AGAIN,
    Kind.LEAVE,
    Kind.GATHER,
    Kind.ALARMS,
    Kind.CONNECT,
    Kind.CO_PROCESS,
    *TIMED,
    *OF_MAPS,
}


def test_all_kinds_of_tasks_and_edges_and_parallelisms_occur() -> None:
    tasks = [task for graph in GRAPHS for task in graph.tasks]
    assert {task.kind for task in tasks} == set(Kind) - LATER
    assert {task.parallelism for task in tasks} == {1, 2, 3, 4}
    edges = {partitioner.name for task in tasks for _, partitioner in task.inputs}
    assert edges == set(wire_names()) - {RANGES.name}
    assert any(len(task.inputs) > 1 for task in tasks), "no union"


def test_some_custom_edges_become_ranges_and_nothing_else_is_drawn_anew() -> None:
    generators = [random.Random(seed) for seed in range(len(GRAPHS))]
    ranged = [with_ranges(graph, rng) for graph, rng in zip(GRAPHS, generators, strict=True)]
    assert all(r.random() == random.Random(seed).random() for seed, r in enumerate(generators))
    pairs = [
        (old, new)
        for before, after in zip(GRAPHS, ranged, strict=True)
        for old_task, new_task in zip(before.tasks, after.tasks, strict=True)
        for (_, old), (_, new) in zip(old_task.inputs, new_task.inputs, strict=True)
    ]
    assert {(old.name, new.name) for old, new in pairs if old != new} == {("custom", "range")}
    assert any(isinstance(new, Custom) for _, new in pairs)


def test_every_task_is_read_and_keyed_ones_are_read_by_key() -> None:
    for graph in GRAPHS:
        read = {producer for task in graph.tasks for producer, _ in task.inputs}
        for index, task in enumerate(graph.tasks):
            assert (index in read) == (task.kind is not Kind.SINK), graph.describe()
            assert all(producer < index for producer, _ in task.inputs)
            if task.kind in KEYED:
                assert all(isinstance(partitioner, Hash) for _, partitioner in task.inputs)


def test_dropping_agrees_with_what_the_reference_drops() -> None:
    rows = [dict.fromkeys(SCHEMA.names, 0) | {"id": id} for id in range(40)]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    kept = next(iter(Drop(3).process(batch, 0))).column(0).to_pylist()
    assert kept == [id for id in range(40) if not is_dropped(id, 3)]
    assert len(kept) == 30
