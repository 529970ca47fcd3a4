"""The execution plan of a random job: operators of tasks, and edges between tasks."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping

from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.rebalance import Rebalance

from ...contract.execution import EdgePlan, EventTimeRole, ExecutionPlan, OperatorPlan, TaskPlan
from ...contract.operators import Operator
from ...operators import aggregations
from ...operators.aggregate import AggregateOperator
from ...operators.join import Interval
from ...operators.process import ProcessOperator
from ..sink import SinkSystem, SystemCommitter, SystemWriter
from .alarms import alarms
from .asks import asks_of
from .batches import Batched, rule_of
from .co_processes import co_process
from .connects import Connected
from .event_time import Times, buckets
from .failing import calls, failing_of
from .graphs import MAX_PARALLELISM, TIMED, Graph, Kind
from .lives import Expiring, in_order, lives
from .loops import Rounds, head_of
from .operators import Drop, Gather, History, Records, Stamp
from .source import SCHEMA, RecordsReader
from .windows import (
    DISTANCE_NS,
    SLIDING,
    TUMBLING,
    Joined,
    Late,
    PairsTold,
    SessionJoined,
    Sessions,
    Windows,
    WindowsTold,
)

_TOTALS = {"n": aggregations.count(), "total": aggregations.sum("id")}
_WINDOWS: Mapping[Kind, Callable[[str], Operator]] = {
    Kind.WINDOWS: functools.partial(Windows, TUMBLING),
    Kind.SLIDING: functools.partial(Windows, SLIDING),
    Kind.SESSIONS: Sessions,
}
_JOINS: Mapping[Kind, Callable[[str], Operator]] = {
    Kind.JOIN: functools.partial(Joined, Interval(-DISTANCE_NS, DISTANCE_NS)),
    Kind.WINDOW_JOIN: functools.partial(Joined, SLIDING),
    Kind.SESSION_JOIN: SessionJoined,
}
_WITH_TTL: Mapping[Kind, Callable[[str], Operator]] = {
    Kind.LIVES: lives,
    Kind.EXPIRING: Expiring,
}
#: Sources of a job with a task of this kind make watermarks.
_TELLING_TIME = (*TIMED, Kind.CO_PROCESS)


def plan_of(graph: Graph, rng: random.Random, system: SinkSystem) -> ExecutionPlan:
    """The execution plan of the graph: sources draw from `rng`, sinks write to `system`."""
    edges: list[EdgePlan] = []
    for consumer, task in enumerate(graph.tasks):
        for port, (producer, partitioner) in enumerate(task.inputs + task.again):
            key = f"{producer}->{consumer}/{port}"
            index = len(edges)
            equal = graph.tasks[producer].parallelism == task.parallelism
            if isinstance(partitioner, Forward) and not equal:
                partitioner = Rebalance()  # as the planner makes it of an edge without partitioning
            edges.append(
                EdgePlan(
                    index,
                    key,
                    producer,
                    consumer,
                    port,
                    partitioner,
                    SCHEMA,
                    feedback=port >= len(task.inputs),
                )
            )
    tasks = tuple(
        TaskPlan(
            index=index,
            name=f"{task.kind.value}{index}",
            operators=_operators(graph, index, rng, system),
            parallelism=task.parallelism,
            inputs=tuple(e.index for e in edges if e.consumer == index),
            outputs=tuple(e.index for e in edges if e.producer == index),
            error_outputs=tuple(
                e.index
                for e in edges
                if e.producer == index and graph.tasks[e.consumer].kind is Kind.DEAD
            ),
        )
        for index, task in enumerate(graph.tasks)
    )
    return ExecutionPlan("job", tasks, tuple(edges), MAX_PARALLELISM)


def _operators(
    graph: Graph, index: int, rng: random.Random, system: SinkSystem
) -> tuple[OperatorPlan, ...]:
    kind = graph.tasks[index].kind
    name = f"{kind.value}{index}"
    stamp = OperatorPlan(f"{name}-stamp", operator=functools.partial(Stamp, index))
    match kind:
        case Kind.SOURCE:
            reader = functools.partial(
                RecordsReader, index, graph.rows, graph.keys, graph.splits, rng
            )
            source = OperatorPlan(name, source=reader, stateful=True)
            if all(task.kind not in _TELLING_TIME for task in graph.tasks):
                return (source,)
            return (source, OperatorPlan(f"{name}-times", operator=Times, time=EventTimeRole.MAKES))
        case Kind.MAP | Kind.HEAD:
            return (stamp,)
        case Kind.AGAIN | Kind.LEAVE:
            head = head_of(graph, index)
            rounds = functools.partial(Rounds, index, head, again=kind is Kind.AGAIN)
            return (OperatorPlan(f"{name}-rounds", operator=rounds),)
        case Kind.BATCHES:
            batched = functools.partial(Batched, index)
            return (OperatorPlan(f"{name}-stamp", operator=batched, batch=rule_of(index)),)
        case Kind.ASKS:
            return (_timed(name, asks_of(graph, index)), stamp)
        case Kind.ROUTES | Kind.SKIPS:
            return (_failing(name, kind, index),)
        case Kind.DROP:
            drop = functools.partial(Drop, index)
            return (OperatorPlan(f"{name}-drop", operator=drop), stamp)
        case Kind.HISTORY:
            history = functools.partial(_history, index, name)
            return (OperatorPlan(name, operator=history, stateful=True), stamp)
        case Kind.BUCKETS:
            return (_timed(name, buckets), stamp)
        case Kind.WINDOWS | Kind.SLIDING | Kind.SESSIONS:
            told = OperatorPlan(f"{name}-told", operator=WindowsTold)
            return (_timed(name, _WINDOWS[kind]), told, stamp)
        case Kind.LATE:
            return (_timed(name, Late), stamp)
        case Kind.JOIN | Kind.WINDOW_JOIN | Kind.SESSION_JOIN:
            told = OperatorPlan(f"{name}-told", operator=PairsTold)
            return (_timed(name, _JOINS[kind]), told, stamp)
        case Kind.LIVES | Kind.EXPIRING:
            return (_timed(f"{name}-order", in_order), _timed(name, _WITH_TTL[kind]), stamp)
        case Kind.CO_PROCESS:
            return (_timed(name, functools.partial(co_process, index)), stamp)
        case Kind.CONNECT:
            main_ports = len(graph.tasks[index].inputs) - 1
            connected = functools.partial(Connected, index, main_ports, name)
            return (OperatorPlan(name, operator=connected, stateful=True), stamp)
        case Kind.ALARMS:
            return (_timed(name, alarms), stamp)
        case Kind.TOTALS:
            totals = functools.partial(_totals, name)
            records = OperatorPlan(f"{name}-records", operator=Records)
            return (OperatorPlan(name, operator=totals, stateful=True), records, stamp)
        case Kind.GATHER:
            gather = functools.partial(Gather, index)
            return (OperatorPlan(name, operator=gather, stateful=True),)
        case Kind.SINK | Kind.DEAD:
            writer = functools.partial(SystemWriter, system)
            # The coordinator's process makes committers, and calls the system in another way.
            committer = functools.partial(_no_committer, name)
            sink = OperatorPlan(name, sink=writer, committer=committer, stateful=True)
            return (sink,) if kind is Kind.SINK else (stamp, sink)


def _timed(name: str, make: Callable[[str], Operator]) -> OperatorPlan:
    operator = functools.partial(make, name)
    return OperatorPlan(name, operator=operator, stateful=True, time=EventTimeRole.ACTS)


def _failing(name: str, kind: Kind, index: int) -> OperatorPlan:
    make = failing_of(kind, index)
    if calls(index):
        return _timed(name, make)
    return OperatorPlan(name, operator=functools.partial(make, name))


def _no_committer(name: str) -> SystemCommitter:
    raise AssertionError(f"the committer of {name} is made by the simulated coordinator")


def _totals(name: str) -> AggregateOperator:
    return AggregateOperator(["key"], _TOTALS, SCHEMA, emit="final", operator=name)


def _history(index: int, name: str) -> ProcessOperator:
    return ProcessOperator(History(index), ["key"], SCHEMA, SCHEMA, operator=name)
