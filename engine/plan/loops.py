"""Loops of a job: the operators on a cycle, and what makes a loop impossible.

`check_loop` refuses faults of a loop as soon as its body is built; `check_back_edges` those that
depend on the job's parallelism.

Event time does not pass a back-edge, since a record may go round for as long as it likes: a
watermark that waited for it would never move, and the loop's end with it. So operators that wait
for event time would see the watermarks of the entries only, and take records of later rounds for
late; they are refused. An operator that emits at the end of input would emit into a loop that has
ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.operators import EventTimeOperator, JudgesLoops
from ..operators.progress import WatermarkGenerator
from .graph import LogicalGraph, Node, Role

_ADVICE = "put it before the loop, or behind the stream that leaves it"


def check_loop(head: Node) -> None:
    """Refuse a loop whose body is built and cannot go round.

    Raises: UserError for an `again` that does not come from the loop, is the loop itself, or has
        other columns; for operators that act on event time, or emit at the end of input.
    """
    where = f"iterate {head.name!r}"
    cycle = cycle_of(head)
    if head not in cycle:
        raise UserError(
            f"{where}: again does not come from the loop; build it from the stream that the body is"
            " given, as in loop.filter(...)"
        )
    for edge in head.again:
        if edge.node is head:
            raise UserError(
                f"{where}: again is the loop itself, so that every record goes round for ever;"
                " filter those that need another round"
            )
        if not edge.schema.equals(head.schema):
            raise UserError(
                f"{where}: again has the columns {_columns(edge.schema)}, and the loop takes"
                f" {_columns(head.schema)}; make them equal with select()"
            )
    for node in cycle:
        fault = _fault(node)
        if fault is not None:
            raise UserError(f"{where}: {node.label} {fault}, which no loop can hold; {_ADVICE}")


def check_back_edges(graph: LogicalGraph, width: Mapping[Node, int]) -> None:
    """Refuse a back-edge that nothing partitions between unequal parallelisms.

    `width`: {node: its parallelism}.
    """
    for head in graph.nodes:
        for edge in head.again:
            if edge.partitioning is None and width[edge.node] != width[head]:
                raise UserError(
                    f"iterate {head.name!r}: again comes from {edge.node.label} with parallelism"
                    f" {width[edge.node]}, and the loop has {width[head]}; make them equal, or"
                    " return again.rebalance()"
                )


def cycle_of(head: Node) -> list[Node]:
    """Return the nodes on a way from `head` back to `head`, loops inside included, head last."""
    before: dict[Node, None] = {}
    stack = [edge.node for edge in head.again]
    consumers: dict[Node, list[Node]] = {}
    while stack:
        node = stack.pop()
        if node in before:
            continue
        before[node] = None
        if node is head:
            continue
        for edge in (*node.inputs, *node.again):
            consumers.setdefault(edge.node, []).append(node)
            stack.append(edge.node)
    behind = _reached([head], consumers)
    return [node for node in reversed(before) if node in behind and node is not head] + (
        [head] if head in before else []
    )


def _reached(nodes: Iterable[Node], consumers: Mapping[Node, list[Node]]) -> set[Node]:
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(consumers.get(node, ()))
    return found


def _fault(node: Node) -> str | None:
    """Say why no loop can hold the operator; None: a loop can."""
    if node.role is not Role.OPERATOR or node.operator is None:
        return None
    operator = node.operator(operator=node.name or node.kind)
    if isinstance(operator, JudgesLoops):
        return operator.loop_fault
    if isinstance(operator, EventTimeOperator | WatermarkGenerator):
        return "acts on event time"
    return None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
