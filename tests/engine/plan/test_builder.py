"""The builder: from sinks to tasks and edges."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.api.write import SinkHandle
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.execution import EventTimeRole, ExecutionPlan
from headrace.engine.contract.operators import OperatorContext
from headrace.engine.operators.aggregations import count
from headrace.engine.plan.builder import build_plan


def orders(name: str = "orders", parallelism: int | None = None) -> Stream:
    rows = [pa.record_batch({"id": [1, 2, 3], "amount": [10, 20, 30]})]
    return batches(rows, name=name, parallelism=parallelism)


def plan(*sinks: SinkHandle, parallelism: int | None = 2) -> ExecutionPlan:
    nodes = [sink.node for sink in sinks]
    return build_plan("job", nodes, parallelism=parallelism, max_parallelism=8)


def shape(built: ExecutionPlan) -> list[tuple[str, int, Sequence[int], Sequence[int]]]:
    return [(task.name, task.parallelism, task.inputs, task.outputs) for task in built.tasks]


def test_a_keyed_pipeline_becomes_two_tasks_and_a_hash_edge() -> None:
    totals = (
        orders().filter(pc.field("amount") > 10).key_by("id").aggregate(n=count(), name="totals")
    )
    built = plan(totals.write.collect(name="out"))
    assert shape(built) == [("orders -> filter-1", 2, (), (0,)), ("totals -> out", 2, (0,), ())]
    (edge,) = built.edges
    assert (edge.key, edge.producer, edge.consumer, edge.port) == ("filter-1->totals/0", 0, 1, 0)
    assert edge.partitioner == Hash(("id",), 8)
    assert edge.schema.names == ["id", "amount"]
    assert [operator.stateful for task in built.tasks for operator in task.operators] == [
        True,
        False,
        True,
        True,
    ]
    assert (built.job, built.max_parallelism, built.slots) == ("job", 8, 2)
    assert (built.tasks[0].is_source, built.tasks[1].is_sink) == (True, True)


def test_another_parallelism_is_reached_by_rebalancing() -> None:
    built = plan(orders(parallelism=1).select("id").write.blackhole(name="out", parallelism=3))
    assert shape(built) == [
        ("orders", 1, (), (0,)),
        ("select-1", 2, (0,), (1,)),
        ("out", 3, (1,), ()),
    ]
    assert [edge.partitioner for edge in built.edges] == [Rebalance(), Rebalance()]
    assert built.slots == 3


def test_a_stream_with_two_consumers_feeds_both_by_forward_edges() -> None:
    stream = orders()
    built = plan(stream.write.blackhole(name="a"), stream.select("id").write.blackhole(name="b"))
    assert shape(built) == [
        ("orders", 2, (), (0, 1)),
        ("a", 2, (0,), ()),
        ("select-1 -> b", 2, (1,), ()),
    ]
    assert [edge.partitioner for edge in built.edges] == [Forward(), Forward()]


def test_a_union_numbers_the_ports_of_its_consumer() -> None:
    both = orders("left").union(orders("right").broadcast(), orders("left2"))
    built = plan(both.write.blackhole(name="out"))
    assert [(edge.key, edge.port) for edge in built.edges] == [
        ("left->out/0", 0),
        ("right->out/1", 1),
        ("left2->out/2", 2),
    ]
    assert [edge.partitioner for edge in built.edges] == [Forward(), Broadcast(), Forward()]
    assert built.tasks[3].inputs == (0, 1, 2)


def test_a_stream_united_with_itself_has_an_edge_for_each_port() -> None:
    stream = orders()
    built = plan(stream.union(stream).write.blackhole(name="out"))
    assert [edge.key for edge in built.edges] == ["orders->out/0", "orders->out/1"]
    assert built.tasks[0].outputs == (0, 1)


def test_a_sink_behind_a_users_function_is_a_task_of_its_own() -> None:
    built = plan(orders().map_batches(lambda batch: batch).write.blackhole(name="out"))
    assert [task.name for task in built.tasks] == ["orders -> map_batches-1", "out"]


def test_the_same_program_gives_the_same_plan() -> None:
    def build() -> ExecutionPlan:
        left, right = orders("left"), orders("right")
        both = left.union(right).key_by("id").aggregate(n=count(), name="totals")
        return plan(both.write.collect(name="out"), left.select("id").write.blackhole(name="rest"))

    assert shape(build()) == shape(build())
    assert build().edges == build().edges


def test_the_plan_runs_after_a_journey() -> None:
    offset = 5

    def shift(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"id": pc.add(batch["id"], offset), "amount": batch["amount"]}

    built = plan(orders().map_batches(shift, name="shift").write.collect(name="out"))
    copy: ExecutionPlan = pickle.loads(cloudpickle.dumps(built))
    source, shifter = copy.tasks[0].operators
    assert source.source is not None
    assert shifter.operator is not None
    reader, operator = source.source(), shifter.operator()
    for part in (reader, operator):
        part.open(OperatorContext("job", "x", 0, 1, 8, 1))
    (batch,) = reader.poll(100).batches
    (shifted,) = operator.process(batch, 0)
    assert shifted["id"].to_pylist() == [6, 7, 8]
    out = copy.tasks[1].operators[0]
    assert out.sink is not None
    assert out.committer is not None
    assert out.sink() is not out.sink()
    assert out.committer() is not out.committer()


def test_a_sink_that_commits_nothing_has_no_committer() -> None:
    built = plan(orders().write.blackhole(name="out"))
    assert built.tasks[0].operators[-1].committer is None


def test_without_any_parallelism_there_is_a_subtask_per_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cpus, expected in ((3, 3), (64, 8), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda cpus=cpus: cpus)
        assert plan(orders().write.blackhole(name="out"), parallelism=None).slots == expected


def test_a_closure_that_cannot_be_pickled_is_refused_with_its_operator() -> None:
    lock = threading.Lock()
    stream = orders().map(lambda row: row | {"held": lock.locked()}, name="guarded")
    with pytest.raises(UserError) as caught:
        plan(stream.write.blackhole(name="out"))
    label = stream.inputs[0].node.label
    assert label.startswith("map 'guarded' (test_builder.py:")
    assert str(caught.value) == (
        f"{label} cannot be shipped to the workers "
        "(TypeError: cannot pickle '_thread.lock' object); "
        "make what cannot be pickled inside the function, or pass a class that makes it"
    )


def test_a_partitioning_function_that_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()

    def by_lock(batch: pa.RecordBatch, consumers: int) -> list[int]:
        return [int(lock.locked())] * batch.num_rows

    stream = orders().partition_by(by_lock).select("id", name="picked")
    with pytest.raises(UserError, match=r"^select 'picked' .* cannot be shipped to the workers"):
        plan(stream.write.blackhole(name="out"))


def test_two_operators_of_one_name_are_refused_with_their_lines() -> None:
    first = orders("same")
    second = orders("same")
    sites = [stream.inputs[0].node.built_at for stream in (first, second)]
    with pytest.raises(UserError) as caught:
        plan(first.union(second).write.blackhole(name="out"))
    assert str(caught.value) == (
        f"two operators are named 'same': read.batches at {sites[0]} and read.batches at"
        f" {sites[1]}; "
        "rename one"
    )


def test_a_parallelism_above_max_parallelism_is_refused() -> None:
    with pytest.raises(UserError, match="the job has parallelism 9, above max_parallelism 8"):
        plan(orders().write.blackhole(name="out"), parallelism=9)


def test_the_plan_knows_what_watermarks_are_to_each_task() -> None:
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us"))])
    nothing = pa.RecordBatch.from_pylist([], schema=schema)
    stream = batches([nothing], name="timed").with_watermark("at", "1s", idle_after=2)
    counts = stream.key_by("key").aggregate(n=count(), name="counts")
    built = plan(counts.write.collect(name="out"))
    assert [task.time for task in built.tasks] == [EventTimeRole.MAKES, EventTimeRole.PASSES]
    assert [task.idle_after_ns for task in built.tasks] == [2 * 10**9, None]


def test_hops_are_those_of_the_longest_way() -> None:
    assert plan(orders().write.blackhole(name="out")).hops == 0, "one chain"
    far = orders("far").rebalance().select("id").rebalance()
    merged = orders("near").select("id").union(far).select("id")
    assert plan(merged.rebalance().write.blackhole(name="out")).hops == 3
