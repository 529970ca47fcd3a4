"""Keyed tasks of a random job that look at time, or take in a second stream.

Each stands in the place of a history, so anywhere in a job: behind tasks that map and drop, before
tasks that count, at any parallelism. The output of every task must be equal in all runs, and this
limits the places. Operators of event time get records as the sources emitted them: other records
have no time that fits the watermarks. Windows with late records promise only sums, and a broadcast
is told as often as there are subtasks: no task may count either output.
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
    TIMED,
    WINDOWED,
    WITH_TTL,
    Graph,
    Kind,
    TaskSpec,
    behind,
    has_copies,
)

#: Share of the jobs in which histories become something else, and share of the histories in those.
_JOBS, _TASKS = 0.5, 0.7
_IN_TIME = (*WINDOWED, Kind.JOIN, Kind.WINDOW_JOIN)
#: Their records are new, or later than the records of the sources.
_OUT_OF_TIME = (*ANEW, Kind.ALARMS, Kind.CONNECT, Kind.CO_PROCESS)
#: Share of the jobs with kinds of `with_later_kinds`, and share of the tasks that fit.
_LATER_JOBS, _LATER_TASKS = 0.25, 0.7


def with_time(graph: Graph, rng: random.Random, *, exact: bool) -> Graph:
    """Turn some histories into other tasks.

    Not `exact`: records may come twice, and no task may count.
    """
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

    `rng` draws for this alone, so a seed keeps the other draws. Records come once.
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
    """Fitting kinds of `with_later_kinds`, where tasks behind have their kinds already."""
    kind = tasks[index].kind
    if kind in JOINS:
        return [Kind.SESSION_JOIN]
    if kind in WINDOWED:
        return [*WITH_TTL]
    if kind is not Kind.HISTORY or any(tasks[i].kind in TIMED for i in behind(tasks, index)):
        return []
    kinds = [Kind.CO_PROCESS] * bool(_tellers(tasks, index))
    return [*kinds, Kind.SESSION_JOIN, *WITH_TTL] if _is_in_time(tasks, index) else kinds


def _kinds(tasks: Sequence[TaskSpec], index: int) -> list[Kind]:
    """Kinds that fit the task's place."""
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
    """The task's edges as this kind: a join needs two, and a broadcast comes last."""
    inputs = tasks[index].inputs
    if kind in (*JOINS, Kind.CO_PROCESS) and len(inputs) == 1:
        in_time = [i for i in range(index) if _leaves_in_time(tasks, i)]
        earlier = _tellers(tasks, index) if kind is Kind.CO_PROCESS else in_time
        return (*inputs, (rng.choice(earlier), Hash(("key",), MAX_PARALLELISM)))
    if kind is Kind.CONNECT:
        return (*inputs, (rng.choice(_tellers(tasks, index)), Broadcast()))
    return inputs


def _is_in_time(tasks: Sequence[TaskSpec], index: int) -> bool:
    """Records enter the task as they left the sources, no later than the watermarks."""
    return all(_leaves_in_time(tasks, producer) for producer, _ in tasks[index].inputs)


def _leaves_in_time(tasks: Sequence[TaskSpec], index: int) -> bool:
    return tasks[index].kind not in _OUT_OF_TIME and _is_in_time(tasks, index)


def _tellers(tasks: Sequence[TaskSpec], index: int) -> list[int]:
    """Tasks whose records exist once in every run, so that a broadcast of them can be checked."""
    uncertain = {
        later
        for i, task in enumerate(tasks)
        if task.kind is Kind.LATE
        for later in behind(tasks, i)
    }
    return [i for i in range(index) if i not in uncertain and not has_copies(tasks, i)]
