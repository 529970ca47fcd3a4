"""Logged edges cut a graph into regions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.api.write import SinkHandle
from headrace.engine.connectors.edge_log import EdgeLogSink, EdgeLogSource
from headrace.engine.contract.connectors import Sink, Source
from headrace.engine.contract.errors import UserError
from headrace.engine.operators.aggregations import count
from headrace.engine.plan.builder import build_plan
from headrace.engine.plan.graph import Node, Role
from headrace.engine.plan.regions import RegionGraph, has_regions, split
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery.edge_log_files import EdgeLogFiles


def orders(name: str = "orders") -> Stream:
    return batches([pa.record_batch({"id": [1, 2, 3], "amount": [10, 20, 30]})], name=name)


def ends(log: str, node: Node, region: str) -> tuple[Sink, Source]:
    files = EdgeLogFiles(MemoryStore(), "job", log)
    return EdgeLogSink(files), EdgeLogSource(files, node.schema)


def regions(*sinks: SinkHandle, named: tuple[str, ...] = ()) -> list[RegionGraph]:
    return split([sink.node for sink in sinks], ends, named)


def shape(region: RegionGraph) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return region.name, region.reads, region.writes


def test_a_logged_edge_parts_a_pipeline_in_two() -> None:
    logged = orders().logged(name="log")
    totals = logged.key_by("id").aggregate(n=count(), name="totals")
    first, second = regions(totals.write.collect(name="out"))
    assert [shape(first), shape(second)] == [("orders", (), ("log",)), ("log", ("log",), ())]
    plans = [
        build_plan("job", region.sinks, parallelism=2, max_parallelism=8)
        for region in (first, second)
    ]
    assert [[task.name for task in plan.tasks] for plan in plans] == [
        ["orders -> log"],
        ["log", "totals -> out"],
    ]
    assert [edge.partitioner.name for edge in plans[1].edges] == ["hash"]


def test_a_log_has_one_source_in_each_region_that_reads_it() -> None:
    logged = orders().logged(name="log")
    one = logged.union(logged.select("id", "amount", name="same")).write.collect(name="one")
    other = logged.write.collect(name="other")
    found = regions(one, other)
    assert [shape(region) for region in found] == [
        ("orders", (), ("log",)),
        ("log", ("log",), ()),
        ("other", ("log",), ()),
    ]
    plan = build_plan("job", found[1].sinks, parallelism=1, max_parallelism=8)
    assert sum(task.is_source for task in plan.tasks) == 1


def test_writers_come_before_readers_whatever_the_order_of_the_sinks() -> None:
    logged = orders().logged(name="log")
    late = logged.logged(name="again").write.collect(name="late")
    early = logged.write.collect(name="early")
    assert [shape(region) for region in regions(late, early)] == [
        ("orders", (), ("log",)),
        ("log", ("log",), ("again",)),
        ("early", ("log",), ()),
        ("again", ("again",), ()),
    ]


def test_regions_can_be_named_after_any_of_their_operators() -> None:
    logged = orders().logged(name="log")
    out = logged.key_by("id").aggregate(n=count(), name="totals").write.collect(name="out")
    assert [region.name for region in regions(out, named=("totals",))] == ["orders", "totals"]
    with pytest.raises(UserError, match="no operator of that name; did you mean 'totals'"):
        regions(out, named=("total",))
    with pytest.raises(UserError, match="Region 'out' and Region 'totals' are one region"):
        regions(out, named=("totals", "out"))


def test_a_way_around_the_log_is_refused() -> None:
    stream = orders()
    both = stream.logged(name="log").union(stream)
    with pytest.raises(UserError, match=r"logged 'log' .* has both ends in one region"):
        regions(both.write.collect(name="out"))


def test_a_log_within_a_loop_is_refused_and_a_loop_within_a_region_is_whole() -> None:
    def body(loop: Stream) -> tuple[Stream, Stream]:
        return loop.logged(name="inner").select("id", "amount", name="again"), loop

    with pytest.raises(UserError, match=r"logged 'inner' .* or a loop joins them"):
        regions(orders().iterate(body, name="rounds").write.collect(name="out"))
    logged = orders().logged(name="log")
    rounds = logged.iterate(
        lambda loop: (loop.select("id", "amount", name="round"), loop), name="rounds"
    )
    found = regions(rounds.write.collect(name="out"))
    assert [shape(region) for region in found] == [
        ("orders", (), ("log",)),
        ("log", ("log",), ()),
    ]
    plan = build_plan("job", found[1].sinks, parallelism=2, max_parallelism=8)
    assert [edge.key for edge in plan.edges if edge.feedback] == ["rounds (again)->rounds/0"]


def test_regions_in_a_circle_are_refused() -> None:
    left, right = orders("left"), orders("right")
    crossed = left.union(right.logged(name="to-left")).write.collect(name="one")
    back = right.union(left.logged(name="to-right")).write.collect(name="two")
    with pytest.raises(UserError, match="read each other's logs in a circle"):
        regions(crossed, back)


def test_a_job_without_logged_edges_has_no_regions() -> None:
    out = orders().write.collect(name="out")
    assert not has_regions([out.node])
    assert has_regions([orders().logged(name="log").write.collect(name="out").node])


def test_event_time_goes_over_the_log() -> None:
    rows = pa.record_batch({"at": pa.array([1], pa.timestamp("us"))})
    timed = batches([rows], name="rows").with_watermark("at", "1s").logged(name="log")
    assert timed.event_time == "at"
    first, second = regions(timed.write.collect(name="out"))
    assert first.sinks[0].takes_event_time
    plan = build_plan("job", second.sinks, parallelism=1, max_parallelism=8)
    assert [operator.name for operator in plan.tasks[0].operators] == [
        "log",
        "log-watermark",
        "out",
    ]


def test_the_nodes_of_a_region_hold_no_log() -> None:
    logged = orders().logged(name="log").write.collect(name="out")
    for region in regions(logged):
        assert all(sink.role is Role.SINK for sink in region.sinks)
