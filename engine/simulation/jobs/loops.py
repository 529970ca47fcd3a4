"""Loops of a random job.

A loop stands in front of a task: a head that marks the path once a round, perhaps a body, a filter
that feeds the back-edge, and a filter for the records that leave. A record's id says how many
rounds it needs, and its path tells how many it had; so a record that is lost, doubled or let out
early shows in the sinks. The loop ends by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

from .graphs import (
    KEYED,
    MAX_PARALLELISM,
    TIMED,
    Graph,
    Kind,
    TaskSpec,
    behind,
    by_key,
    has_copies,
)
from .operators import PATH_STEP, Stamp
from .source import SCHEMA
from .versions import Rescale

#: Share of the jobs with loops, among those with a fitting task.
_JOBS: Final = 0.3
#: Digits of a path in an int64.
_DIGITS_MAX: Final = 15
#: Rounds of a record that needs most.
ROUNDS_MAX: Final = 3
#: Kinds that take all their inputs alike: a loop may stand in front of them.
_BEHIND: Final = (
    Kind.MAP,
    Kind.BATCHES,
    Kind.ASKS,
    Kind.SKIPS,
    Kind.ROUTES,
    Kind.DROP,
    Kind.HISTORY,
    Kind.TOTALS,
    Kind.ALARMS,
    Kind.SINK,
)
_Inputs = tuple[tuple[int, Partitioner], ...]
_HASH: Final = Hash(("key",), MAX_PARALLELISM)


def rounds_of(id: Any, head: int) -> Any:
    """How many rounds a record takes in the loop with this head; works on numbers and arrays."""
    return 1 + (id // 2 + head) % ROUNDS_MAX


def rounds_had(path: Any, head: int) -> Any:
    """How many rounds a path tells; works on numbers and arrays."""
    digits = (path // PATH_STEP**place % PATH_STEP for place in range(_DIGITS_MAX))
    return sum((digit == head + 1) * 1 for digit in digits)


def head_of(graph: Graph, index: int) -> int:
    """The head of the loop that the filter `index` belongs to."""
    return max(i for i, task in enumerate(graph.tasks[:index]) if task.kind is Kind.HEAD)


def body_of(graph: Graph, head: int) -> list[int]:
    """The tasks between a head and its filters."""
    tasks = graph.tasks[head + 1 :]
    length = next(place for place, task in enumerate(tasks) if task.kind is Kind.AGAIN)
    return list(range(head + 1, head + 1 + length))


class Rounds(Stamp):
    """Lets through the records that need another round, or those that need none; no mark."""

    def __init__(self, task: int, head: int, *, again: bool) -> None:
        super().__init__(task)
        self._head = head
        self._again = again

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Filter, and set `sender`."""
        id, path = batch.column(0).to_numpy(), batch.column(2).to_numpy()
        needs = rounds_had(path, self._head) < rounds_of(id, self._head)
        kept = batch.filter(pa.array(needs if self._again else ~needs))
        sender = pa.array(np.full(kept.num_rows, self._index, np.int64))
        yield pa.RecordBatch.from_arrays([*kept.columns[:5], sender], schema=SCHEMA)


# --- drawing --------------------------------------------------------------------------------------


def with_loops(
    graph: Graph, rescales: tuple[Rescale, ...], rng: random.Random
) -> tuple[Graph, tuple[Rescale, ...]]:
    """Put up to two loops in front of tasks. `rng` draws for this alone."""
    if rng.random() >= _JOBS:
        return graph, rescales
    for _ in range(rng.choice((1, 1, 2))):
        places = [index for index in range(len(graph.tasks)) if _fits(graph, index)]
        if places:
            graph, rescales = _looped(graph, rescales, rng.choice(places), rng)
    return graph, rescales


def _fits(graph: Graph, index: int) -> bool:
    """The loop's records are the same in every run, and windows behind get none too late."""
    tasks = graph.tasks
    inside = any(task.again and index <= task.again[0][0] + 1 for task in tasks[:index])
    if tasks[index].kind not in _BEHIND or inside:
        return False
    late = (i for i, each in enumerate(tasks) if each.kind is Kind.LATE)
    told = any(index in behind(tasks, i) for i in late)
    timed = any(tasks[i].kind in TIMED for i in behind(tasks, index))
    # Four more tasks, each a digit, and a digit for each further round of head and body.
    loops = 1 + sum(bool(task.again) for task in tasks)
    digits = len(tasks) + 4 + 2 * (ROUNDS_MAX - 1) * loops
    return not told and not timed and digits <= _DIGITS_MAX


def _looped(
    graph: Graph, rescales: tuple[Rescale, ...], index: int, rng: random.Random
) -> tuple[Graph, tuple[Rescale, ...]]:
    """Put a loop in front of task `index`, which moves behind it."""
    bodies = [[], [Kind.MAP], [Kind.BATCHES]]
    copied = any(isinstance(change.partitioner, Broadcast) for change in graph.changes)
    if not rescales or not (copied or has_copies(graph.tasks, index)):
        bodies += [[Kind.HISTORY]] * 2  # at changing parallelism no task counts copies
    body = rng.choice(bodies)
    kinds = [Kind.HEAD, *body, Kind.AGAIN, Kind.LEAVE]
    more, last = len(kinds), index + len(body)

    def moved(inputs: _Inputs) -> _Inputs:
        return tuple((p + more if p >= index else p, partitioner) for p, partitioner in inputs)

    def widths(parallelism: tuple[int, ...]) -> tuple[int, ...]:
        own = parallelism[index]
        drawn = [rng.choice((own, rng.randint(1, max(parallelism)))) for _ in kinds]
        return (*parallelism[:index], *drawn, *parallelism[index:])

    parallelism = widths(tuple(task.parallelism for task in graph.tasks))
    tasks = [replace(t, inputs=moved(t.inputs), again=moved(t.again)) for t in graph.tasks]
    behind = tasks[index]
    loop = [TaskSpec(Kind.HEAD, 1, behind.inputs, ((last + 1, _drawn(rng)),))]
    loop += [TaskSpec(kind, 1, ((index, _into(kind, rng)),)) for kind in body]
    loop += [TaskSpec(kind, 1, ((last, _drawn(rng)),)) for kind in kinds[-2:]]
    tasks[index] = replace(behind, inputs=((index + more - 1, _into(behind.kind, rng)),))
    tasks[index:index] = loop
    # The head has the edges of the task behind the loop.
    changes = (replace(c, task=c.task + more if c.task > index else c.task) for c in graph.changes)
    graph = replace(
        graph,
        tasks=tuple(replace(t, parallelism=p) for t, p in zip(tasks, parallelism, strict=True)),
        changes=tuple(changes),
    )
    return graph, tuple(replace(r, parallelism=widths(r.parallelism)) for r in rescales)


def _into(kind: Kind, rng: random.Random) -> Partitioner:
    return _HASH if kind in KEYED else _drawn(rng)


def _drawn(rng: random.Random) -> Partitioner:
    return rng.choice((Forward(), Forward(), Rebalance(), Shuffle(), _HASH, Custom(by_key)))
