"""Versions of a job: restarts after a stop or a death, with other parallelism, workers,
partitioners.

A run goes through a chain of versions. Each begins a while after the version before: at a random
time, or when a checkpoint completes, so that the next version begins in the midst of a replay. Each
goes on from the newest checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

from ..scheduler import MILLISECOND_NS
from .graphs import (
    KEYED,
    MAX_PARALLELISM,
    RANGES,
    Change,
    Graph,
    Kind,
    TaskSpec,
    behind,
    by_key,
    has_copies,
)

#: Share of the jobs with changed partitioners, of the fitting edges, and of jobs that change
#: partitioners without parallelism.
_CHANGED_JOBS, _CHANGED_EDGES, _WIDTHS_KEPT = 0.3, 0.6, 0.3
#: Tasks in which any subtask may take any record.
_INDIFFERENT = (Kind.MAP, Kind.DROP, Kind.SINK)


class Ending(Enum):
    """How the version before ends."""

    #: With a last checkpoint.
    STOP = "stop"
    #: As a live handle rescales: workers of the next version start and fetch state before the last
    #: checkpoint, an unaligned one.
    RESCALE = "rescale"
    #: With a savepoint.
    SAVEPOINT = "savepoint"
    #: At once; what no checkpoint covers is done again.
    CANCEL = "cancel"
    #: Its driver is killed.
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Rescale:
    """The next version, and the end of the present version.

    Attributes:
        checkpoints: the present version first completes so many.
        delay_ns: then the present version goes on for so long.
        parallelism: by task.
    """

    ending: Ending
    checkpoints: int
    delay_ns: int
    parallelism: tuple[int, ...]
    workers: int


def draw_rescales(rng: random.Random, graph: Graph) -> tuple[Rescale, ...]:
    """Draw a chain of one to three versions."""
    return tuple(_draw_rescale(rng, graph) for _ in range(rng.choice((1, 1, 2, 3))))


def _draw_rescale(rng: random.Random, graph: Graph) -> Rescale:
    highest = rng.choice((2, 4, 4, 6))
    common = rng.randint(1, highest) if rng.random() < 0.6 else 0
    parallelism = tuple(common or rng.randint(1, highest) for _ in graph.tasks)
    ending = rng.choice((Ending.STOP, Ending.STOP, Ending.CANCEL, Ending.KILL))
    # Later draws are apart, so that a seed keeps the others.
    state = rng.getstate()
    if ending is Ending.STOP and rng.random() < 0.5:
        ending = Ending.SAVEPOINT
    elif ending is not Ending.KILL and rng.random() < 0.6:
        ending = Ending.RESCALE
    rng.setstate(state)
    return Rescale(
        ending=ending,
        checkpoints=rng.choice((0, 1, 1, 2)),
        delay_ns=rng.choice((0, rng.randint(0, 60))) * MILLISECOND_NS,
        parallelism=parallelism,
        workers=rng.randint(1, max(parallelism)),
    )


def with_changes(
    graph: Graph, rescales: tuple[Rescale, ...], rng: random.Random
) -> tuple[Graph, tuple[Rescale, ...]]:
    """The job and the versions, with other partitioners from the second version on.

    `rng` draws for this alone. Later versions keep the partitioners: after a rescale only the
    edge's own partitioner can tell apart the records in flight.
    """
    if not rescales or rng.random() >= _CHANGED_JOBS:
        return graph, rescales
    changes = tuple(
        Change(index, port, rng.choice(_others(graph.tasks, index, edge)))
        for index, task in enumerate(graph.tasks)
        for port, (_, edge) in enumerate(task.inputs)
        if _may_change(task, edge) and rng.random() < _CHANGED_EDGES
    )
    first, *others = rescales
    if changes and first.ending is Ending.RESCALE:
        first = replace(first, ending=Ending.STOP)  # a live rescale runs the same program
    if changes and rng.random() < _WIDTHS_KEPT:
        kept = tuple(task.parallelism for task in graph.tasks)
        first = replace(first, parallelism=kept, workers=rng.randint(1, max(kept)))
    return replace(graph, changes=changes), (first, *others)


def _may_change(task: TaskSpec, edge: Partitioner) -> bool:
    """Keyed tasks stay keyed, and of copies some were worked on."""
    return task.kind in _INDIFFERENT and not isinstance(edge, Broadcast)


def _others(tasks: Sequence[TaskSpec], index: int, edge: Partitioner) -> list[Partitioner]:
    """Partitioners that may replace `edge`, on an edge into task `index`."""
    hashes = [Hash((column,), MAX_PARALLELISM) for column in ("key", "id")]
    found = [Rebalance(), Shuffle(), Forward(), *hashes, Custom(by_key), RANGES]
    if _may_copy(tasks, index):
        found.append(Broadcast())
    return [other for other in found if other != edge]


def _may_copy(tasks: Sequence[TaskSpec], index: int) -> bool:
    """No task counts the records that enter task `index`."""
    late = [i for i, task in enumerate(tasks) if task.kind is Kind.LATE]
    counted = any(index in behind(tasks, i) for i in late)
    return not counted and all(tasks[i].kind in _INDIFFERENT for i in behind(tasks, index))


def rescalable(graph: Graph, rng: random.Random, *, gather: bool) -> Graph:
    """Return the job with edges whose output is known at changing parallelism.

    No keyed task counts copies, and some tasks `gather` copies.
    """
    tasks = list(graph.tasks)
    for index, task in enumerate(tasks):
        if any(tasks[i].kind in KEYED for i in behind(tasks, index)):
            inputs = tuple((p, _single(edge)) for p, edge in task.inputs)
            tasks[index] = replace(task, inputs=inputs)
    for index, task in enumerate(tasks):
        copies = any(has_copies(tasks, producer) for producer, _ in task.inputs)
        counts = any(tasks[i].kind in KEYED for i in behind(tasks, index))
        drawn = gather and task.kind is Kind.MAP and rng.random() < 0.4
        if drawn and not copies and not counts:
            inputs = tuple((producer, Broadcast()) for producer, _ in task.inputs)
            tasks[index] = replace(task, kind=Kind.GATHER, inputs=inputs)
    return replace(graph, tasks=tuple(tasks))


def _single(edge: Partitioner) -> Partitioner:
    return Rebalance() if isinstance(edge, Broadcast) else edge
