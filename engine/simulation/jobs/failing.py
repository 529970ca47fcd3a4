"""Tasks of a random job whose function fails on some records.

Each stands in the place of a map. What it drops is counted; what it routes goes to a sink of its
own. So a dead letter that is lost, or comes twice, shows in that sink, and the others' results show
in theirs.

Letters travel as plain records here, since the watch knows no other columns.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

from ...contract.operators import Operator, OperatorContext
from ...contract.user_code import Row
from ...operators.async_map import AsyncMapOperator
from ...operators.batch import MapBatchesOperator
from ...operators.failures import OnError
from ...operators.row import MapOperator
from .asks import LIMITS, SimulatedCalls
from .graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec, behind
from .operators import PATH_STEP
from .source import SCHEMA
from .versions import Rescale

#: Share of the jobs with such tasks, share of the maps in those, and share of them that drop.
_JOBS, _TASKS, _DROPPING = 0.5, 0.5, 0.3
_MAPS: Final = (Kind.MAP, Kind.BATCHES, Kind.ASKS, Kind.DROP)
_LETTER_EDGES: Final = (Forward(), Rebalance(), Shuffle(), Hash(("key",), MAX_PARALLELISM))


def fails(id: Any, task: int) -> Any:
    """Whether task `task` fails on a record."""
    return (id - task) % 4 == 0


def calls(task: int) -> bool:
    """Whether task `task` calls a service; its results come in another order."""
    return task % 3 == 0


class _Function:
    """The function of a task: marks the path, as a map does, or fails."""

    def __init__(self, task: int, how: OnError) -> None:
        self._task = task
        self._routes = how == "route"
        self._index = 0

    def in_subtask(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        self._index = context.index

    def __call__(self, row: Row) -> Row:
        """Pass a record on. Raises: ValueError."""
        if fails(row["id"], self._task):
            raise ValueError(f"record {row['id']}")
        return self.marked(row)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Pass a batch on. Raises: ValueError."""
        rows = [self(row) for row in batch.to_pylist()]
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

    def marked(self, row: Row) -> Row:
        """The record as it leaves the task."""
        return row | {"path": row["path"] * PATH_STEP + self._task + 1, "sender": self._index}

    def letters(self, letters: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Make records of dead letters, as they leave the task; letters that do not, stay."""
        if not self._routes:
            return letters
        rows = [self.marked(row) for batch in letters for row in batch["record"].to_pylist()]
        return [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)] if rows else []


class FailingMap(MapOperator):
    """Fails in a map."""

    def __init__(self, task: int, how: OnError, name: str) -> None:
        self._marking = _Function(task, how)
        super().__init__(self._marking, SCHEMA, operator=name, on_error=how)

    def open(self, context: OperatorContext) -> None:
        """See `_Function.in_subtask`."""
        super().open(context)
        self._marking.in_subtask(context)

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """See `_Function.letters`."""
        return self._marking.letters(super().take_errors())


class FailingBatches(MapBatchesOperator):
    """Fails in a function of a batch."""

    def __init__(self, task: int, how: OnError, name: str) -> None:
        self._marking = _Function(task, how)
        super().__init__(self._marking.of_batch, SCHEMA, operator=name, on_error=how)

    def open(self, context: OperatorContext) -> None:
        """See `_Function.in_subtask`."""
        super().open(context)
        self._marking.in_subtask(context)

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """See `_Function.letters`."""
        return self._marking.letters(super().take_errors())


class FailingAsks(AsyncMapOperator):
    """Fails in calls under way."""

    def __init__(self, task: int, how: OnError, name: str) -> None:
        self._marking = marking = _Function(task, how)
        super().__init__(
            marking,
            SCHEMA,
            SCHEMA,
            LIMITS,
            ordered=task % 2 == 0,
            operator=name,
            on_error=how,
            calls=lambda _: SimulatedCalls(marking),
        )

    def open(self, context: OperatorContext) -> None:
        """See `_Function.in_subtask`."""
        super().open(context)
        self._marking.in_subtask(context)

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """See `_Function.letters`."""
        return self._marking.letters(super().take_errors())


def failing_of(kind: Kind, task: int) -> Callable[[str], Operator]:
    """Makes the operator of task `task`, given its name."""
    how: OnError = "route" if kind is Kind.ROUTES else "skip"
    make = (FailingAsks, FailingMap, FailingBatches)[task % 3]
    return functools.partial(make, task, how)


def with_failures(
    graph: Graph, rescales: tuple[Rescale, ...], rng: random.Random
) -> tuple[Graph, tuple[Rescale, ...]]:
    """Turn some maps into tasks that fail on some records, and add the sinks of their letters.

    `rng` draws for this alone. A map behind windows with late records stays: the run decides which
    records such windows emit.
    """
    if rng.random() >= _JOBS:
        return graph, rescales
    tasks = list(graph.tasks)
    uncertain = {
        later
        for index, task in enumerate(tasks)
        if task.kind is Kind.LATE
        for later in behind(tasks, index)
    }
    for index, task in enumerate(graph.tasks):
        if task.kind in _MAPS and index not in uncertain and rng.random() < _TASKS:
            kind = Kind.SKIPS if rng.random() < _DROPPING else Kind.ROUTES
            tasks[index] = replace(task, kind=kind)
            if kind is Kind.ROUTES:
                narrower = rng.choice((0, 1))
                partitioner = rng.choice(_LETTER_EDGES)
                if narrower and isinstance(partitioner, Forward):
                    partitioner = Rebalance()  # as the planner makes it
                edge = (index, partitioner)
                tasks.append(TaskSpec(Kind.DEAD, max(1, task.parallelism - narrower), (edge,)))
                rescales = tuple(_widened(rescale, index, narrower) for rescale in rescales)
    return replace(graph, tasks=tuple(tasks)), rescales


def _widened(rescale: Rescale, routes: int, narrower: int) -> Rescale:
    """The version with the next sink of letters, those of task `routes`."""
    width = max(1, rescale.parallelism[routes] - narrower)
    return replace(rescale, parallelism=(*rescale.parallelism, width))
