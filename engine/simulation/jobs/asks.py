"""Tasks of a random job that call a service for each record, with many calls under way.

Each stands in the place of a map, and puts out what a map does, in another order. So a call that is
under way at a cut and is lost, or counts twice, shows in the sinks; windows behind show a watermark
that does not wait for a call.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from headrace.channels.partitioners.hash import Hash

from ...contract.operators import OperatorContext
from ...contract.user_code import Row
from ...operators.async_calls import Answer, Call, CallLimits
from ...operators.async_map import AsyncMapOperator
from .graphs import Graph, Kind
from .source import SCHEMA

#: Share of the jobs with such tasks, and share of the maps in those.
_JOBS, _TASKS = 0.4, 0.6
LIMITS: Final = CallLimits(6, 1, 0, 0, None)
#: A call ends when somebody has looked for answers so often, by its number.
_LOOKS: Final = (1, 4, 2, 9, 1, 3, 6)


class SimulatedCalls:
    """See `Calls`: the service answers sooner or later, by default with the record.

    Args:
        function: makes the answer; raises ValueError where the call fails.
    """

    def __init__(self, function: Callable[[Row], Row] = lambda row: row) -> None:
        self._function = function
        #: By call: looks left, and the answer.
        self._left: dict[int, int] = {}
        self._answers: dict[int, Answer] = {}

    def start(self, calls: Sequence[Call]) -> None:
        """See `Calls`."""
        for call in calls:
            self._left[call.number] = _LOOKS[call.number % len(_LOOKS)]
            self._answers[call.number] = self._answer(call)

    def _answer(self, call: Call) -> Answer:
        try:
            return Answer(call.number, self._function(call.row))
        except ValueError as error:
            return Answer(call.number, error=error)

    def take(self) -> list[Answer]:
        """See `Calls`."""
        for number in self._left:
            self._left[number] -= 1
        ended = [number for number, left in self._left.items() if left <= 0]
        for number in ended:
            del self._left[number]
        return [self._answers.pop(number) for number in ended]

    def wait(self, timeout_s: float) -> None:
        """See `Calls`: time flies."""

    def close(self) -> None:
        """See `Calls`."""


def _calls(_: OperatorContext) -> SimulatedCalls:
    return SimulatedCalls()


def asks(name: str, *, ordered: bool, keys: Sequence[str] = ()) -> AsyncMapOperator:
    """The operator: the product's, with calls of the simulation."""
    return AsyncMapOperator(
        lambda row: row,
        SCHEMA,
        SCHEMA,
        LIMITS,
        ordered=ordered,
        operator=name,
        keys=keys,
        calls=_calls,
    )


def ordered_at(task: int) -> bool:
    """Whether task `task` keeps the order of its records."""
    return task % 2 == 0


def keyed_at(graph: Graph, task: int) -> bool:
    """Whether records come to task `task` by key in all versions of the job."""
    if any(change.task == task for change in graph.changes):
        return False
    edges = [edge for _, edge in graph.tasks[task].inputs]
    return all(isinstance(edge, Hash) and edge.columns == ("key",) for edge in edges)


def asks_of(graph: Graph, task: int) -> functools.partial[AsyncMapOperator]:
    """Makes the operator of task `task`, given its name."""
    keys = ("key",) if keyed_at(graph, task) else ()
    return functools.partial(asks, ordered=ordered_at(task), keys=keys)


def with_asks(graph: Graph, rng: random.Random) -> Graph:
    """Turn some maps into tasks that call a service. `rng` draws for this alone."""
    if rng.random() >= _JOBS:
        return graph
    tasks = [
        replace(task, kind=Kind.ASKS)
        if task.kind in (Kind.MAP, Kind.BATCHES) and rng.random() < _TASKS
        else task
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))
