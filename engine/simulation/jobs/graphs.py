"""Random jobs for simulations: two to six tasks of every kind, joined by every kind of edge.

A `Graph` is a small description; the execution plan (`graph_plans.py`) and the expected output
(`reference.py`) are made from the graph. Stateful tasks run the product's operators; the rest is
plain columns of integers, so that a run stays short. `timed_graphs.py` draws the tasks that look at
time, and the tasks with a second stream.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

MAX_PARALLELISM = 16


class Kind(Enum):
    """How a task treats records."""

    SOURCE = "source"
    #: Marks the path.
    MAP = "map"
    #: Marks the path, a full batch at a time.
    BATCHES = "batches"
    #: Marks the path, by calls of a service that end in another order.
    ASKS = "asks"
    #: Marks the path, and fails on a quarter of the records, by id: routes them, ...
    ROUTES = "routes"
    #: ... or drops them.
    SKIPS = "skips"
    #: A sink of the records that the task before it routes.
    DEAD = "dead"
    #: Drops a quarter of the records, by id.
    DROP = "drop"
    #: Keyed: appends each record to the list of its key and says at which place.
    HISTORY = "history"
    #: Keyed: counts and sums, and emits one record per key at the end of input.
    TOTALS = "totals"
    #: Reads a broadcast in full into broadcast state; emits a record per key at the end of input.
    GATHER = "gather"
    #: Keyed: counts and sums by event time; a timer emits a record per key and bucket.
    BUCKETS = "buckets"
    #: Keyed: the same with windows, ...
    WINDOWS = "windows"
    #: ... with windows that overlap, ...
    SLIDING = "sliding"
    #: ... and with windows of activity.
    SESSIONS = "sessions"
    #: Keyed: windows with late records: the run decides, but each record is in a window or late.
    LATE = "late"
    #: Keyed: joins the first input with records of the others that are close in event time.
    JOIN = "join"
    #: Keyed: the same by windows, ...
    WINDOW_JOIN = "window join"
    #: ... and by windows of activity of both sides.
    SESSION_JOIN = "session join"
    #: Keyed: counts and sums in state that expires, ...
    LIVES = "lives"
    #: ... and with an aggregate whose keys expire.
    EXPIRING = "expiring"
    #: Keyed: holds records back until the clock has come to a timer.
    ALARMS = "alarms"
    #: Keyed: a history of all inputs but the last, a broadcast; each subtask emits totals of the
    #: broadcast at the end of input.
    CONNECT = "connect"
    #: Keyed: a history of both its streams, with totals of each at the end of input.
    CO_PROCESS = "co-process"
    #: Begins a loop: marks the path, once a round.
    HEAD = "head"
    #: Lets through the records of a loop that need another round.
    AGAIN = "again"
    #: Lets through the others.
    LEAVE = "leave"
    SINK = "sink"


FAILING = (Kind.ROUTES, Kind.SKIPS)
JOINS = (Kind.JOIN, Kind.WINDOW_JOIN, Kind.SESSION_JOIN)
WINDOWED = (Kind.BUCKETS, Kind.WINDOWS, Kind.SLIDING, Kind.SESSIONS)
WITH_TTL = (Kind.LIVES, Kind.EXPIRING)
TIMED = (*WINDOWED, Kind.LATE, *JOINS, *WITH_TTL)
KEYED = (Kind.HISTORY, Kind.TOTALS, Kind.ALARMS, Kind.CONNECT, Kind.CO_PROCESS, *TIMED)
#: These emit new records, whose paths begin there.
ANEW = (Kind.TOTALS, Kind.GATHER, *TIMED)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task: `inputs` are indexes of earlier tasks, each with the edge's partitioner.

    `again`: the back-edges of a loop's head, from later tasks.
    """

    kind: Kind
    parallelism: int
    inputs: tuple[tuple[int, Partitioner], ...] = ()
    again: tuple[tuple[int, Partitioner], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Another partitioner for an edge: input `port` of task `task`."""

    task: int
    port: int
    partitioner: Partitioner


@dataclass(frozen=True, slots=True)
class Graph:
    """A job: tasks in topological order but for back-edges, and sources of `rows` records in
    `splits` and `keys`.

    Attributes:
        changes: partitioners of all versions of the job after the first.
    """

    tasks: tuple[TaskSpec, ...]
    rows: int
    keys: int
    splits: int = 4
    changes: tuple[Change, ...] = ()

    @property
    def slots(self) -> int:
        """The largest parallelism."""
        return max(task.parallelism for task in self.tasks)

    def describe(self) -> str:
        """A line per task and change."""
        tasks = [
            f"{index}: {task.kind.value} x{task.parallelism} "
            + " ".join(f"<-{p} {partitioner.name}" for p, partitioner in task.inputs + task.again)
            for index, task in enumerate(self.tasks)
        ]
        changes = [f"{c.task}/{c.port}: later {c.partitioner.name}" for c in self.changes]
        return "\n".join((*tasks, *changes))


def at_parallelism(graph: Graph, parallelism: Sequence[int]) -> Graph:
    """The job with other numbers of subtasks, by task."""
    pairs = zip(graph.tasks, parallelism, strict=True)
    return replace(graph, tasks=tuple(replace(task, parallelism=p) for task, p in pairs))


def changed(graph: Graph) -> Graph:
    """The job with the partitioners of later versions."""
    tasks = list(graph.tasks)
    for change in graph.changes:
        inputs = list(tasks[change.task].inputs)
        inputs[change.port] = (inputs[change.port][0], change.partitioner)
        tasks[change.task] = replace(tasks[change.task], inputs=tuple(inputs))
    return replace(graph, tasks=tuple(tasks))


def behind(tasks: Sequence[TaskSpec], index: int) -> list[int]:
    """The task and all tasks downstream."""
    reached = {index}
    for later, task in enumerate(tasks):
        if any(producer in reached for producer, _ in task.inputs):
            reached.add(later)
    return sorted(reached)


def has_copies(tasks: Sequence[TaskSpec], index: int) -> bool:
    """How often a record comes out of the task depends on the parallelism."""
    return any(
        isinstance(edge, Broadcast) or has_copies(tasks, producer)
        for producer, edge in tasks[index].inputs
    )


#: By key, as `by_key` is; jobs have at most 16 keys.
RANGES = ByRange("key", ("1", "2", "3", "5", "7", "9", "12"))
#: Share of the custom edges that are ranges.
_RANGED = 0.3


def by_key(batch: pa.RecordBatch, consumers: int) -> Any:
    """A custom partition function: the key itself."""
    return batch.column(1).to_numpy() % consumers


def draw_graph(rng: random.Random, *, keyed_totals: bool) -> Graph:
    """Draw a job. Without `keyed_totals` no task's output depends on how often a record came."""
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
    return Graph(tuple(tasks), rng.choice((8, 16, 24, 40)), rng.choice((1, 3, 8)))


def with_ranges(graph: Graph, rng: random.Random) -> Graph:
    """Return the job with ranges of the key in place of a function of the key, for some edges."""
    # Later additions are drawn apart, so that a seed keeps its other draws.
    state = rng.getstate()
    tasks = [
        replace(task, inputs=tuple((p, _ranged(edge, rng)) for p, edge in task.inputs))
        for task in graph.tasks
    ]
    rng.setstate(state)
    return replace(graph, tasks=tuple(tasks))


def _ranged(edge: Partitioner, rng: random.Random) -> Partitioner:
    return RANGES if isinstance(edge, Custom) and rng.random() < _RANGED else edge


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
