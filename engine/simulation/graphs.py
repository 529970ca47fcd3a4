"""Random jobs for simulations: two to six tasks of every kind, joined by every kind of edge.

A `Graph` is a small description from which both the execution plan and, in `reference.py`, the expected output are made.
Stateful tasks run the product's own operators; the rest is plain columns of integers, so that a run stays short.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from headrace.channels.partitioners import (
    Broadcast,
    Custom,
    Forward,
    Hash,
    Partitioner,
    Rebalance,
    Shuffle,
)

from ..operators import aggregations
from ..operators.aggregate import AggregateOperator
from ..operators.base import Operator
from ..operators.process import ProcessOperator
from ..plan.execution import EdgePlan, EventTimeRole, ExecutionPlan, OperatorPlan, TaskPlan
from .alarms import alarms
from .event_time import Times, buckets
from .operators import Drop, Gather, History, Records, Stamp
from .sink import SinkSystem, SystemCommitter, SystemWriter
from .source import SCHEMA, RecordsReader
from .windows import Joined, PairsTold, Windows, WindowsTold

MAX_PARALLELISM = 16
_TOTALS = {"n": aggregations.count(), "total": aggregations.sum("id")}


class Kind(Enum):
    """What a task does with its records."""

    SOURCE = "source"
    #: Marks the path.
    MAP = "map"
    #: Drops a quarter of the records, by id.
    DROP = "drop"
    #: Keyed: appends each record to the list of its key and says at which place.
    HISTORY = "history"
    #: Keyed: counts and sums, and emits one record per key at the end of input.
    TOTALS = "totals"
    #: Reads a broadcast in full; state of the broadcast kind; emits one record per key at the end of input.
    GATHER = "gather"
    #: Keyed: counts and sums by event time, and emits one record per key and bucket when a timer fires.
    BUCKETS = "buckets"
    #: Keyed: the same with windows.
    WINDOWS = "windows"
    #: Keyed: joins the records of the first input with those of the others that are close in event time.
    JOIN = "join"
    #: Keyed: holds records back until the clock has come to a timer.
    ALARMS = "alarms"
    SINK = "sink"


TIMED = (Kind.BUCKETS, Kind.WINDOWS, Kind.JOIN)
KEYED = (Kind.HISTORY, Kind.TOTALS, Kind.ALARMS, *TIMED)
#: What they emit is no record that came in: its path begins there.
ANEW = (Kind.TOTALS, Kind.GATHER, *TIMED)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task: `inputs` are indexes of earlier tasks, each with the partitioner of its edge."""

    kind: Kind
    parallelism: int
    inputs: tuple[tuple[int, Partitioner], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A job: tasks in topological order; `rows` of each source in `splits`, spread over `keys` keys."""

    tasks: tuple[TaskSpec, ...]
    rows: int
    keys: int
    splits: int = 4

    @property
    def slots(self) -> int:
        """The largest parallelism."""
        return max(task.parallelism for task in self.tasks)

    def describe(self) -> str:
        """One line per task."""
        return "\n".join(
            f"{index}: {task.kind.value} x{task.parallelism} "
            + " ".join(f"<-{producer} {partitioner.name}" for producer, partitioner in task.inputs)
            for index, task in enumerate(self.tasks)
        )


def at_parallelism(graph: Graph, parallelism: Sequence[int]) -> Graph:
    """The same job with other numbers of subtasks, by task."""
    pairs = zip(graph.tasks, parallelism, strict=True)
    return replace(graph, tasks=tuple(replace(task, parallelism=p) for task, p in pairs))


def by_key(batch: pa.RecordBatch, consumers: int) -> Any:
    """A custom partition function: the key itself."""
    return batch.column(1).to_numpy() % consumers


def draw_graph(rng: random.Random, *, keyed_totals: bool) -> Graph:
    """Draw a job. Without `keyed_totals` no task's output depends on how often it saw a record."""
    common = rng.randint(1, 4) if rng.random() < 0.6 else 0

    def parallelism() -> int:
        return common or rng.randint(1, 4)

    tasks = [TaskSpec(Kind.SOURCE, parallelism()) for _ in range(rng.choice((1, 1, 2)))]
    loose = list(range(len(tasks)))
    middle = [Kind.MAP, Kind.DROP, Kind.HISTORY, Kind.HISTORY] + [Kind.TOTALS] * keyed_totals
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        kind = rng.choice(middle)
        wanted = rng.choice((1, 1, 2))
        producers = sorted(set(rng.sample(loose, min(wanted, len(loose)))))
        if rng.random() < 0.25:
            producers = sorted({*producers, rng.randrange(len(tasks))})
        tasks.append(_draw_task(rng, tasks, kind, parallelism(), producers))
        loose = [task for task in loose if task not in producers] + [len(tasks) - 1]
    sinks = rng.choice((1, 1, 2)) if len(loose) > 1 or rng.random() < 0.3 else 1
    candidates = len(tasks)
    for number in range(sinks):
        producers = loose[number::sinks] or [rng.randrange(candidates)]
        tasks.append(_draw_task(rng, tasks, Kind.SINK, parallelism(), producers))
    graph = Graph(tuple(tasks), rng.choice((8, 16, 24, 40)), rng.choice((1, 3, 8)))
    return _with_buckets(rng, graph) if keyed_totals else graph


def _with_buckets(rng: random.Random, graph: Graph) -> Graph:
    """Let one of the histories look at event time, if it gets its records as they left the sources. Drawn apart: a seed keeps its other draws."""
    state = rng.getstate()
    as_read: list[bool] = []
    for task in graph.tasks:
        whole = all(as_read[producer] for producer, _ in task.inputs)
        as_read.append(whole and task.kind is not Kind.TOTALS)
    able = [i for i, t in enumerate(graph.tasks) if t.kind is Kind.HISTORY and as_read[i]]
    tasks = list(graph.tasks)
    if able and rng.random() < 0.5:
        chosen = rng.choice(able)
        tasks[chosen] = replace(tasks[chosen], kind=Kind.BUCKETS)
    rng.setstate(state)
    return replace(graph, tasks=tuple(tasks))


def _draw_task(
    rng: random.Random, tasks: list[TaskSpec], kind: Kind, parallelism: int, producers: list[int]
) -> TaskSpec:
    inputs = tuple(
        (p, _draw_partitioner(rng, kind, tasks[p].parallelism == parallelism)) for p in producers
    )
    return TaskSpec(kind, parallelism, inputs)


def _draw_partitioner(rng: random.Random, kind: Kind, equal: bool) -> Partitioner:
    hashed = Hash(("key",), MAX_PARALLELISM)
    if kind in KEYED:
        return hashed
    if equal and rng.random() < 0.4:
        return Forward()
    return rng.choice(
        (Rebalance(), Shuffle(), hashed, hashed, Custom(by_key), Custom(by_key), Broadcast())
    )


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan_of(graph: Graph, rng: random.Random, system: SinkSystem) -> ExecutionPlan:
    """The graph as an execution plan whose sources draw from `rng` and whose sinks write to `system`."""
    edges: list[EdgePlan] = []
    for consumer, task in enumerate(graph.tasks):
        for port, (producer, partitioner) in enumerate(task.inputs):
            key = f"{producer}->{consumer}/{port}"
            index = len(edges)
            equal = graph.tasks[producer].parallelism == task.parallelism
            if isinstance(partitioner, Forward) and not equal:
                partitioner = Rebalance()  # as the planner makes it of an edge without partitioning
            edges.append(EdgePlan(index, key, producer, consumer, port, partitioner, SCHEMA))
    tasks = tuple(
        TaskPlan(
            index=index,
            name=f"{task.kind.value}{index}",
            operators=_operators(graph, index, rng, system),
            parallelism=task.parallelism,
            inputs=tuple(e.index for e in edges if e.consumer == index),
            outputs=tuple(e.index for e in edges if e.producer == index),
        )
        for index, task in enumerate(graph.tasks)
    )
    return ExecutionPlan("job", tasks, tuple(edges), MAX_PARALLELISM)


def _operators(
    graph: Graph, index: int, rng: random.Random, system: SinkSystem
) -> tuple[OperatorPlan, ...]:
    name = f"{graph.tasks[index].kind.value}{index}"
    stamp = OperatorPlan(f"{name}-stamp", operator=functools.partial(Stamp, index))
    match graph.tasks[index].kind:
        case Kind.SOURCE:
            reader = functools.partial(
                RecordsReader, index, graph.rows, graph.keys, graph.splits, rng
            )
            source = OperatorPlan(name, source=reader, stateful=True)
            if all(task.kind not in TIMED for task in graph.tasks):
                return (source,)
            return (source, OperatorPlan(f"{name}-times", operator=Times, time=EventTimeRole.MAKES))
        case Kind.MAP:
            return (stamp,)
        case Kind.DROP:
            drop = functools.partial(Drop, index)
            return (OperatorPlan(f"{name}-drop", operator=drop), stamp)
        case Kind.HISTORY:
            history = functools.partial(_history, index, name)
            return (OperatorPlan(name, operator=history, stateful=True), stamp)
        case Kind.BUCKETS:
            return (_timed(name, buckets), stamp)
        case Kind.WINDOWS:
            told = OperatorPlan(f"{name}-told", operator=WindowsTold)
            return (_timed(name, Windows), told, stamp)
        case Kind.JOIN:
            told = OperatorPlan(f"{name}-told", operator=PairsTold)
            return (_timed(name, Joined), told, stamp)
        case Kind.ALARMS:
            return (_timed(name, alarms), stamp)
        case Kind.TOTALS:
            totals = functools.partial(_totals, name)
            records = OperatorPlan(f"{name}-records", operator=Records)
            return (OperatorPlan(name, operator=totals, stateful=True), records, stamp)
        case Kind.GATHER:
            gather = functools.partial(Gather, index)
            return (OperatorPlan(name, operator=gather, stateful=True),)
        case Kind.SINK:
            writer = functools.partial(SystemWriter, system)
            # Committers are made by the coordinator's process, which has its own way to call the system.
            committer = functools.partial(_no_committer, name)
            return (OperatorPlan(name, sink=writer, committer=committer, stateful=True),)


def _timed(name: str, make: Callable[[str], Operator]) -> OperatorPlan:
    operator = functools.partial(make, name)
    return OperatorPlan(name, operator=operator, stateful=True, time=EventTimeRole.ACTS)


def _no_committer(name: str) -> SystemCommitter:
    raise AssertionError(f"the committer of {name} is made by the simulated coordinator")


def _totals(name: str) -> AggregateOperator:
    return AggregateOperator(["key"], _TOTALS, SCHEMA, emit="final", operator=name)


def _history(index: int, name: str) -> ProcessOperator:
    return ProcessOperator(History(index), ["key"], SCHEMA, SCHEMA, operator=name)
