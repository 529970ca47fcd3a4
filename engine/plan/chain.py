"""Chaining: which neighbours become one task.

Two operators are fused when nothing has to move between them: the consumer's only input is the
producer's main output, the producer has no other consumer, both have the same parallelism, and no
partitioning was asked for. Inside a chain batches are handed on by plain calls, without a queue.

The head of a loop begins a chain, and the loop's end is the tail of a chain: the back-edge is an
edge between tasks, or from a task to itself.

An operator that asks for full batches begins a chain, since rows wait for a full batch in the input
gate of a task, where checkpoints find them.

A sink is not fused behind a user's function. A checkpoint waits for the running call of a task with
a sink, since the sink's writes cannot be taken back; fused, the checkpoint would wait for the
user's function as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..contract.execution import Output
from .graph import LogicalGraph, Node, Role


def chains(graph: LogicalGraph, parallelism: Mapping[Node, int]) -> list[list[Node]]:
    """Split the graph into chains.

    Args:
        parallelism: {node: number of its subtasks}, for every node.

    Returns: the chains in the order of their heads, each head first; every node is in exactly one.
    """
    consumers = graph.consumers()
    chain_of: dict[Node, list[Node]] = {}
    found: list[list[Node]] = []
    for node in graph.nodes:
        producer = _fusable_producer(node, consumers, parallelism)
        chain = None if producer is None else chain_of[producer]
        if chain is None or not _may_end(chain, node):
            chain = []
            found.append(chain)
        chain.append(node)
        chain_of[node] = chain
    return found


def _fusable_producer(
    node: Node, consumers: Mapping[Node, list[Node]], parallelism: Mapping[Node, int]
) -> Node | None:
    if len(node.inputs) != 1 or node.inputs[0].partitioning is not None:
        return None
    if node.inputs[0].output is not Output.MAIN or node.batch is not None or node.again:
        return None
    producer = node.inputs[0].node
    alone = len(consumers[producer]) == 1
    return producer if alone and parallelism[producer] == parallelism[node] else None


def _may_end(chain: list[Node], node: Node) -> bool:
    return node.role is not Role.SINK or not any(before.runs_user_code for before in chain)
