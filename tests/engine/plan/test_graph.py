"""The logical graph: order, names, cycles."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.contract.errors import UserError
from headrace.engine.plan.graph import Input, LogicalGraph, Node, Role

SCHEMA = pa.schema([("a", pa.int64())])


def node(kind: str, *producers: Node, name: str | None = None) -> Node:
    role = Role.OPERATOR if producers else Role.SOURCE
    return Node(kind, role, name, tuple(Input(p) for p in producers), SCHEMA, built_at="job.py:1")


def test_producers_come_before_consumers_in_the_order_they_were_written() -> None:
    left, right = node("read", name="left"), node("read", name="right")
    both = node("map", left, right)
    first, second = node("map", both), node("map", left)
    assert LogicalGraph.of([first, second]).nodes == (left, right, both, first, second)


def test_a_shared_producer_is_one_node() -> None:
    source = node("read", name="source")
    graph = LogicalGraph.of([node("map", source), node("map", source)])
    assert len(graph.nodes) == 3
    assert graph.consumers()[source] == list(graph.nodes[1:])


def test_a_producer_that_is_taken_twice_is_consumed_twice() -> None:
    source = node("read", name="source")
    twice = node("map", source, source)
    assert LogicalGraph.of([twice]).consumers()[source] == [twice, twice]


def test_unnamed_operators_are_counted_by_kind_past_names_that_are_taken() -> None:
    source = node("read", name="map-1")
    graph = LogicalGraph.of([node("map", node("filter", node("map", source)))])
    assert list(graph.names.values()) == ["map-1", "map-2", "filter-1", "map-3"]


def test_a_pipeline_may_be_longer_than_the_stack() -> None:
    last = node("read", name="source")
    for _ in range(sys.getrecursionlimit() + 10):
        last = node("map", last)
    assert LogicalGraph.of([last]).nodes[-1] is last


def test_a_cycle_is_refused() -> None:
    looped = node("map", node("read", name="source"), name="again")
    # No call of the API can do this; a caller that builds nodes by hand can.
    object.__setattr__(looped, "inputs", (Input(node("filter", looped)),))
    with pytest.raises(UserError) as caught:
        LogicalGraph.of([looped])
    assert str(caught.value) == (
        "map 'again' (job.py:1) consumes its own output; write a loop with iterate()"
    )


def test_a_later_partitioning_replaces_an_earlier_one() -> None:
    source = node("read", name="source")
    taken = Input(source, Rebalance()).partitioned(None)
    assert taken == Input(source)
