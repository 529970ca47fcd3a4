"""Tasks of a random job that ask for full batches.

Each stands in the place of a map, and puts out what a map does: only its calls differ. So a row
that waits for its batch and is lost, doubled or overtaken shows in the sinks.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from ...contract.execution import BatchRule
from ..scheduler import MILLISECOND_NS
from .graphs import Graph, Kind
from .operators import Stamp

#: Share of the jobs in which maps ask for batches, and share of the maps in those.
_JOBS, _TASKS = 0.8, 0.8
#: A task's rule, by its index; a run is over within some hundred milliseconds.
_RULES: Final = (
    BatchRule(3, 30 * MILLISECOND_NS),
    BatchRule(7, 200 * MILLISECOND_NS),
    BatchRule(20, 60 * MILLISECOND_NS),
    BatchRule(5),
)


def rule_of(task: int) -> BatchRule:
    """The batches that task `task` asks for."""
    return _RULES[task % len(_RULES)]


class Batched(Stamp):
    """Marks the path, and refuses a call of more rows than were asked for."""

    def __init__(self, task: int) -> None:
        super().__init__(task)
        self._rows_max = rule_of(task).rows

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """See `Stamp`."""
        assert batch.num_rows <= self._rows_max, f"a call of {batch.num_rows} rows"
        return super().process(batch, port)


def with_batches(graph: Graph, rng: random.Random) -> Graph:
    """Turn some maps into tasks that ask for batches. `rng` draws for this alone."""
    if rng.random() >= _JOBS:
        return graph
    tasks = [
        replace(task, kind=Kind.BATCHES)
        if task.kind is Kind.MAP and rng.random() < _TASKS
        else task
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))
