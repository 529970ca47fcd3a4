"""Which keyed tasks of a random job look at time, and which are told something by a second stream.

Each stands where a history stood, so anywhere in a job: behind tasks that map and drop, before tasks that count, at any parallelism. What such a task
puts out must be the same in every run, and that limits the places. Operators of event time get records as they left their sources: others
have no time that fits the watermarks. Of windows with late records only sums can be said, and of a broadcast how often it is told depends on
the parallelism: nothing may count what comes out of these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner

from .graphs import (
    ANEW,
    JOINS,
    MAX_PARALLELISM,
    MORTAL,
    TIMED,
    WINDOWED,
    Graph,
    Kind,
    TaskSpec,
    behind,
    has_copies,
)

#: Share of the jobs in which histories become something else, and share of the histories in those.
_JOBS, _TASKS = 0.5, 0.7
_IN_TIME = (*WINDOWED, Kind.JOIN, Kind.WINDOW_JOIN)
#: What comes out of them is not, or not when, what left the sources.
_OUT_OF_TIME = (*ANEW, Kind.ALARMS, Kind.CONNECT, Kind.CO_PROCESS)
#: Share of the jobs with kinds of `with_later_kinds`, and share of the tasks that fit.
_LATER_JOBS, _LATER_TASKS = 0.25, 0.7


def with_time(graph: Graph, rng: random.Random, *, exact: bool) -> Graph:
    """Make other tasks of some histories. Not `exact`: records may come twice, so that nothing may count them."""
    if rng.random() >= _JOBS:
        return graph
    tasks = list(graph.tasks)
    for index, task in enumerate(tasks):
        if task.kind is Kind.HISTORY and rng.random() < _TASKS:
            kind = rng.choice(_kinds(tasks, index) if exact else [Kind.ALARMS])
            tasks[index] = replace(task, kind=kind, inputs=_inputs(tasks, index, kind, rng))
    return replace(graph, tasks=tuple(tasks))


def with_later_kinds(graph: Graph, rng: random.Random) -> Graph:
    """Turn some histories, windows and joins into session joins, co-processors and lives.

    `rng` draws nothing else, so a seed keeps its other draws. Records come once.
    """
    if rng.random() >= _LATER_JOBS:
        return graph
    tasks = list(graph.tasks)
    for index, task in enumerate(tasks):
        kinds = _later_kinds(tasks, index)
        if kinds and rng.random() < _LATER_TASKS:
            kind = rng.choice(kinds)
            tasks[index] = replace(task, kind=kind, inputs=_inputs(tasks, index, kind, rng))
    return replace(graph, tasks=tuple(tasks))


def _later_kinds(tasks: Sequence[TaskSpec], index: int) -> list[Kind]:
    """Kinds of `with_later_kinds` that fit, where later tasks have their kinds already."""
    kind = tasks[index].kind
    if kind in JOINS:
        return [Kind.SESSION_JOIN]
    if kind in WINDOWED:
        return [*MORTAL]
    if kind is not Kind.HISTORY or any(tasks[i].kind in TIMED for i in behind(tasks, index)):
        return []
    kinds = [Kind.CO_PROCESS] * bool(_tellers(tasks, index))
    return [*kinds, Kind.SESSION_JOIN, *MORTAL] if _is_in_time(tasks, index) else kinds


def _kinds(tasks: Sequence[TaskSpec], index: int) -> list[Kind]:
    """What the task can become."""
    kinds = [Kind.ALARMS]
    reached = {tasks[i].kind for i in behind(tasks, index)[1:]}
    if _is_in_time(tasks, index):
        kinds += _IN_TIME
        copied = any(
            isinstance(edge, Broadcast)
            for later in behind(tasks, index)[1:]
            for _, edge in tasks[later].inputs
        )
        if reached <= {Kind.MAP, Kind.SINK} and not copied:
            kinds += [Kind.LATE] * 3  # it has few places
    if reached <= {Kind.MAP, Kind.DROP, Kind.SINK} and _tellers(tasks, index):
        kinds.append(Kind.CONNECT)
    return kinds


def _inputs(
    tasks: Sequence[TaskSpec], index: int, kind: Kind, rng: random.Random
) -> tuple[tuple[int, Partitioner], ...]:
    """The edges that the task has as this kind: a join needs two, and what is told comes last."""
    inputs = tasks[index].inputs
    if kind in (*JOINS, Kind.CO_PROCESS) and len(inputs) == 1:
        in_time = [i for i in range(index) if _leaves_in_time(tasks, i)]
        earlier = _tellers(tasks, index) if kind is Kind.CO_PROCESS else in_time
        return (*inputs, (rng.choice(earlier), Hash(("key",), MAX_PARALLELISM)))
    if kind is Kind.CONNECT:
        return (*inputs, (rng.choice(_tellers(tasks, index)), Broadcast()))
    return inputs


def _is_in_time(tasks: Sequence[TaskSpec], index: int) -> bool:
    """Records come into the task as they left their sources, no later than their watermarks."""
    return all(_leaves_in_time(tasks, producer) for producer, _ in tasks[index].inputs)


def _leaves_in_time(tasks: Sequence[TaskSpec], index: int) -> bool:
    return tasks[index].kind not in _OUT_OF_TIME and _is_in_time(tasks, index)


def _tellers(tasks: Sequence[TaskSpec], index: int) -> list[int]:
    """Tasks of which each record can be told to all subtasks of this one: there is one of it, in every run."""
    uncertain = {
        later
        for i, task in enumerate(tasks)
        if task.kind is Kind.LATE
        for later in behind(tasks, i)
    }
    return [i for i in range(index) if i not in uncertain and not has_copies(tasks, i)]
