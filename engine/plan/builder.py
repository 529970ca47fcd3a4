"""From sinks to the execution plan: validate, set parallelism, chain, number, and check that the
plan can be shipped.

Task and edge indexes follow the logical graph's order, so the same program gives the same plan.
State and in-flight data outlive a change of the program, so operator names address them: an edge's
key is "producer->consumer/port".
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance

from ..contract.errors import UserError
from ..contract.execution import (
    EdgePlan,
    EventTimeRole,
    ExecutionPlan,
    OperatorPlan,
    Output,
    TaskPlan,
)
from ..contract.operators import SinkCommitter
from .chain import chains
from .graph import Input, Keyed, LogicalGraph, Node, Role
from .loops import check_back_edges
from .validate import check_graph


def build_plan(
    job: str, sinks: Sequence[Node], *, parallelism: int | None, max_parallelism: int
) -> ExecutionPlan:
    """Make the plan of a job.

    Args:
        parallelism: of operators that set none; None: one subtask per CPU, at most
            `max_parallelism`.

    Raises: UserError, see `check_graph`, and when an operator cannot be pickled.
    """
    graph = LogicalGraph.of(sinks)
    default = parallelism or min(os.cpu_count() or 1, max_parallelism)
    check_graph(graph, max_parallelism=max_parallelism, parallelism=default)
    width = {node: node.parallelism or default for node in graph.nodes}
    check_back_edges(graph, width)
    plans = {node: _operator_plan(job, node, graph.names[node]) for node in graph.nodes}
    found = chains(graph, width)
    edges = _edges(graph, found, width, max_parallelism)
    tasks = tuple(
        TaskPlan(
            index=index,
            name=" -> ".join(graph.names[node] for node in chain),
            operators=tuple(plans[node] for node in chain),
            parallelism=width[chain[0]],
            inputs=tuple(edge.index for edge in edges if edge.consumer == index),
            outputs=tuple(edge.index for edge in edges if edge.producer == index),
            late_outputs=_side_outputs(edges, index, Output.LATE),
            error_outputs=_side_outputs(edges, index, Output.ERRORS),
        )
        for index, chain in enumerate(found)
    )
    return ExecutionPlan(job, tasks, edges, max_parallelism)


def joined_plan(job: str, plans: Mapping[str, ExecutionPlan]) -> ExecutionPlan:
    """Show the plans of a job's regions as one."""
    tasks: list[TaskPlan] = []
    edges: list[EdgePlan] = []
    regions: dict[str, range] = {}
    for region, plan in plans.items():
        first, edge = len(tasks), len(edges)
        regions[region] = range(first, first + len(plan.tasks))
        tasks += [_moved_task(task, first, edge) for task in plan.tasks]
        edges += [
            replace(
                e, index=e.index + edge, producer=e.producer + first, consumer=e.consumer + first
            )
            for e in plan.edges
        ]
    most = max(plan.max_parallelism for plan in plans.values())
    return ExecutionPlan(job, tuple(tasks), tuple(edges), most, regions)


def _moved_task(task: TaskPlan, first: int, edge: int) -> TaskPlan:
    def moved(edges: Sequence[int]) -> tuple[int, ...]:
        return tuple(index + edge for index in edges)

    return replace(
        task,
        index=task.index + first,
        inputs=moved(task.inputs),
        outputs=moved(task.outputs),
        late_outputs=moved(task.late_outputs),
        error_outputs=moved(task.error_outputs),
    )


def _edges(
    graph: LogicalGraph,
    found: Sequence[Sequence[Node]],
    width: dict[Node, int],
    max_parallelism: int,
) -> tuple[EdgePlan, ...]:
    """The inputs of every chain's head, by consumer and port; a producer is always the tail of its
    chain. Back-edges are the last inputs of their head.
    """
    task_of = {node: index for index, chain in enumerate(found) for node in chain}
    edges: list[EdgePlan] = []
    for consumer, chain in enumerate(found):
        head = chain[0]
        for port, edge in enumerate((*head.inputs, *head.again)):
            feedback = port >= len(head.inputs)
            producer = task_of[edge.node]
            assert found[producer][-1] is edge.node, f"{edge.node.label} is fused and feeds an edge"
            equal = width[edge.node] == width[head]
            edges.append(
                EdgePlan(
                    index=len(edges),
                    key=_key(graph, head, port, edge),
                    producer=producer,
                    consumer=consumer,
                    port=port,
                    partitioner=_partitioner(edge, equal, max_parallelism),
                    schema=edge.schema,
                    output=edge.output,
                    feedback=feedback,
                )
            )
    return tuple(edges)


def _key(graph: LogicalGraph, head: Node, port: int, edge: Input) -> str:
    """Return an edge's key; format, never change."""
    name = graph.names[head]
    if port >= len(head.inputs):
        return f"{name} (again)->{name}/{port - len(head.inputs)}"
    return f"{graph.names[edge.node]}{_side(edge)}->{name}/{port}"


def _side(edge: Input) -> str:
    """Return the part of an edge's key that tells a side output from the main output; format,
    never change.
    """
    return "" if edge.output is Output.MAIN else f" ({edge.output.value})"


def _side_outputs(edges: Sequence[EdgePlan], task: int, output: Output) -> tuple[int, ...]:
    return tuple(e.index for e in edges if e.producer == task and e.output is output)


def _partitioner(edge: Input, equal_parallelism: bool, max_parallelism: int) -> Partitioner:
    match edge.partitioning:
        case None:
            return Forward() if equal_parallelism else Rebalance()
        case Keyed(columns):
            return Hash(columns, max_parallelism)
        case partitioner:
            return partitioner


def _operator_plan(job: str, node: Node, name: str) -> OperatorPlan:
    plan = OperatorPlan(
        name=name,
        operator=functools.partial(node.operator, operator=name) if node.operator else None,
        source=node.reader,
        prepare=node.prepare,
        sink=node.writer,
        committer=_committer_factory(job, node, name),
        stateful=node.stateful or node.role is not Role.OPERATOR,
        time=EventTimeRole.ACTS if node.takes_event_time else _time_role(node.operator),
        idle_after_ns=node.idle_after_ns,
        batch=node.batch,
        built_at=node.built_at,
    )
    _check_shippable(node, plan)
    return plan


def _time_role(factory: Callable[..., Any] | None) -> EventTimeRole:
    """Return the role of watermarks for the products of `factory`.

    Only a class can tell before it is called; the chain looks again afterwards.
    """
    while isinstance(factory, functools.partial):
        factory = factory.func
    if factory is None:
        return EventTimeRole.PASSES
    if not isinstance(factory, type) or hasattr(factory, "advance"):
        return EventTimeRole.ACTS
    return EventTimeRole.MAKES if hasattr(factory, "watermark_ns") else EventTimeRole.PASSES


def _committer_factory(job: str, node: Node, name: str) -> Callable[[], SinkCommitter] | None:
    """Return the factory of a sink's committer, or None if the sink says that it needs none."""
    if node.committer is None or node.committer(job, name) is None:
        return None
    return functools.partial(_committer, node.committer, job, name)


def _committer(
    make: Callable[[str, str], SinkCommitter | None], job: str, name: str
) -> SinkCommitter:
    committer = make(job, name)
    assert committer is not None, f"sink {name!r} had a committer when the job was planned"
    return committer


def _check_shippable(node: Node, plan: OperatorPlan) -> None:
    """Pickle the operator and its custom partitioning as the launchers will, so that failing is
    cheap and has a name.
    """
    import cloudpickle  # not at the top: a program that only builds a graph need not wait

    partitionings = [edge.partitioning for edge in (*node.inputs, *node.again)]
    try:
        cloudpickle.dumps((plan, partitionings))
    except Exception as error:  # a user's __reduce__ may raise anything
        raise UserError(
            f"{node.label} cannot be shipped to the workers ({type(error).__name__}: {error}); "
            "make what cannot be pickled inside the function, or pass a class that makes it"
        ) from error
