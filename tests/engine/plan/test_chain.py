"""Chaining: what is fused, and what keeps neighbours apart."""

from __future__ import annotations

import pyarrow as pa

from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.plan.chain import chains
from headrace.engine.plan.graph import Input, LogicalGraph, Node, Partitioning, Role

SCHEMA = pa.schema([("a", pa.int64())])


def node(
    name: str,
    *producers: Node,
    role: Role = Role.OPERATOR,
    parallelism: int = 2,
    partitioning: Partitioning = None,
    slow: bool = False,
) -> Node:
    return Node(
        kind="map",
        role=role,
        name=name,
        inputs=tuple(Input(producer, partitioning) for producer in producers),
        schema=SCHEMA,
        parallelism=parallelism,
        runs_user_code=slow,
    )


def fused(*sinks: Node) -> list[str]:
    graph = LogicalGraph.of(sinks)
    width = {n: n.parallelism or 1 for n in graph.nodes}
    return [" ".join(graph.names[n] for n in chain) for chain in chains(graph, width)]


def test_neighbours_with_nothing_between_are_one_chain() -> None:
    source = node("s", role=Role.SOURCE)
    assert fused(node("b", node("a", source))) == ["s a b"]


def test_another_parallelism_begins_a_chain() -> None:
    assert fused(node("b", node("a", node("s", role=Role.SOURCE)), parallelism=3)) == ["s a", "b"]


def test_a_partitioning_begins_a_chain() -> None:
    source = node("s", role=Role.SOURCE)
    assert fused(node("a", source, partitioning=Rebalance())) == ["s", "a"]


def test_two_consumers_begin_a_chain_each() -> None:
    source = node("s", role=Role.SOURCE)
    assert fused(node("a", source), node("b", source)) == ["s", "a", "b"]


def test_two_inputs_begin_a_chain() -> None:
    left, right = node("l", role=Role.SOURCE), node("r", role=Role.SOURCE)
    assert fused(node("b", node("a", left, right))) == ["l", "r", "a b"]


def test_a_sink_is_fused_behind_operators_of_ours() -> None:
    source = node("s", role=Role.SOURCE)
    assert fused(node("out", node("a", source), role=Role.SINK)) == ["s a out"]


def test_a_sink_is_not_fused_behind_a_users_function() -> None:
    slow = node("a", node("s", role=Role.SOURCE), slow=True)
    assert fused(node("out", node("b", slow), role=Role.SINK)) == ["s a b", "out"]
