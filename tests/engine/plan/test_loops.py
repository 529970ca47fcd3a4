"""Loops of the logical graph, and what makes one impossible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.execution import ExecutionPlan
from headrace.engine.plan.loops import cycle_of
from headrace.engine.plan.mermaid import mermaid

SCHEMA = pa.schema([("key", pa.int64()), ("left", pa.int64()), ("at", pa.timestamp("us"))])
AGAIN = pc.field("left") > 0
DONE = pc.field("left") == 0


class OnTime(hr.StatefulProcessor):
    """Never run here."""

    def on_timer(self, key: Any, time_ns: int) -> None:
        return None


class OnClock(hr.StatefulProcessor):
    """Nor this."""

    def on_processing_timer(self, key: Any, time_ns: int) -> None:
        return None


def records(name: str = "records") -> Stream:
    return batches([pa.RecordBatch.from_pylist([], schema=SCHEMA)], name=name)


def a_round(loop: Stream) -> tuple[Stream, Stream]:
    step = loop.key_by("key").process(OnClock, schema=SCHEMA, name="step")
    return step.filter(AGAIN, name="again"), step.filter(DONE, name="done")


def plan(stream: Stream, parallelism: int = 2) -> ExecutionPlan:
    return hr.Job("job", stream.write.collect(name="out"), parallelism=parallelism).plan()


def refusal(body: Callable[[Stream], Any], parallelism: int = 2) -> str:
    with pytest.raises(UserError) as caught:
        plan(records().with_watermark("at", "1s").iterate(body, name="rounds"), parallelism)
    return str(caught.value)


def test_a_loop_is_a_chain_of_its_own_with_its_back_edge_as_last_port() -> None:
    built = plan(records().iterate(a_round, name="rounds"))
    assert [task.name for task in built.tasks] == [
        "records",
        "rounds",
        "step",
        "done -> out",
        "again",
    ]
    found = [(edge.key, edge.port, edge.feedback) for edge in built.edges]
    assert found == [
        ("records->rounds/0", 0, False),
        ("rounds (again)->rounds/0", 1, True),
        ("rounds->step/0", 0, False),
        ("step->done/0", 0, False),
        ("step->again/0", 0, False),
    ]
    back = built.edges[1]
    assert (back.producer, back.consumer, back.partitioner) == (4, 1, Forward())


def test_a_body_of_one_chain_feeds_itself() -> None:
    def body(loop: Stream) -> tuple[Stream, Stream]:
        again = loop.filter(AGAIN, name="again")
        return again, again

    built = plan(records().iterate(body, name="rounds"))
    assert [task.name for task in built.tasks] == ["records", "rounds -> again", "out"]
    assert [(e.producer, e.consumer) for e in built.edges if e.feedback] == [(1, 1)]


def test_back_edges_are_no_hops_and_are_drawn_dashed() -> None:
    built = plan(records().iterate(a_round, name="rounds"))
    assert built.hops == 3
    assert "t4 -.->|forward| t1" in mermaid(built)
    assert mermaid(built).count("-.->") == 1


def test_loops_hold_loops_and_follow_each_other() -> None:
    def outer(loop: Stream) -> tuple[Stream, Stream]:
        inner = loop.iterate(lambda s: (s.filter(AGAIN), s.filter(DONE)), name="inner")
        return inner.filter(AGAIN), inner.filter(DONE)

    one = records().iterate(outer, name="outer")
    built = plan(one.iterate(a_round, name="next"))
    heads = [built.tasks[e.consumer].name for e in built.edges if e.feedback]
    assert heads == ["outer", "inner", "next"]
    head = one.inputs[0].node.inputs[0].node.inputs[0].node.inputs[0].node
    assert head.name == "outer"
    assert [node.name or node.kind for node in cycle_of(head)].count("inner") == 1


def test_several_streams_go_round_together() -> None:
    def body(loop: Stream) -> tuple[Stream, Stream]:
        step = loop.filter(AGAIN, name="step")
        return step.filter(AGAIN, name="a").union(step.filter(DONE, name="b").rebalance()), step

    built = plan(records().iterate(body, name="rounds"))
    back = [(e.key, e.partitioner) for e in built.edges if e.feedback]
    assert back == [
        ("rounds (again)->rounds/0", Forward()),
        ("rounds (again)->rounds/1", Rebalance()),
    ]


def test_a_loop_needs_a_name_and_a_function() -> None:
    with pytest.raises(UserError, match="iterate needs name=, by which the records on the back-"):
        records().iterate(a_round)
    with pytest.raises(UserError, match="iterate 'r' takes a function that builds a round, got 3"):
        records().iterate(3, name="r")  # type: ignore[arg-type]


def test_a_body_returns_two_streams() -> None:
    assert refusal(lambda loop: loop).startswith(
        "iterate 'rounds': the body returns two streams, (again, out), got "
    )
    assert refusal(lambda loop: (None, loop)) == (
        "iterate 'rounds': the body returns two streams, (again, out), and None is none"
    )


def test_again_comes_from_the_loop_and_is_not_the_loop() -> None:
    other = records("other")
    assert refusal(lambda loop: (other, loop)) == (
        "iterate 'rounds': again does not come from the loop; build it from the stream that the"
        " body is given, as in loop.filter(...)"
    )
    assert refusal(lambda loop: (loop, loop)) == (
        "iterate 'rounds': again is the loop itself, so that every record goes round for ever;"
        " filter those that need another round"
    )


def test_again_has_the_columns_of_the_loop() -> None:
    assert refusal(lambda loop: (loop.select("key"), loop)) == (
        "iterate 'rounds': again has the columns key: int64, and the loop takes key: int64, left:"
        " int64, at: timestamp[us]; make them equal with select()"
    )


@pytest.mark.parametrize(
    "operator",
    [
        lambda s: s.with_watermark("at", "1s", name="bad"),
        lambda s: s.key_by("key").process(OnTime, schema=SCHEMA, name="bad"),
    ],
)
def test_operators_of_event_time_are_refused(operator: Callable[[Stream], Stream]) -> None:
    told = refusal(lambda loop: (operator(loop).filter(AGAIN), loop))
    assert told.startswith("iterate 'rounds': ")
    assert told.endswith(
        " acts on event time, which no loop can hold; put it before the loop, or behind the stream"
        " that leaves it"
    )


def test_operators_that_emit_at_the_end_of_input_are_refused() -> None:
    def body(loop: Stream) -> tuple[Stream, Stream]:
        totals = loop.key_by("key").aggregate(
            left=hr.sum("left"), at=hr.max("at"), name="totals", emit="final"
        )
        return totals, loop

    assert ' emits at the end of input (emit="final"), which no loop can hold' in refusal(body)


def test_they_may_stand_beside_the_cycle() -> None:
    def body(loop: Stream) -> tuple[Stream, Stream]:
        totals = loop.key_by("key").aggregate(n=hr.count(), name="totals", emit="final")
        return loop.filter(AGAIN), totals

    assert plan(records().iterate(body, name="rounds")).hops == 2


def test_calls_that_wait_may_stand_in_a_loop() -> None:
    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        return row

    def body(loop: Stream) -> tuple[Stream, Stream]:
        asked = loop.map_async(ask, SCHEMA, name="ask")
        return asked.filter(AGAIN), asked.filter(DONE)

    assert plan(records().iterate(body, name="rounds")).hops == 2


def test_a_back_edge_between_unequal_parallelisms_is_partitioned() -> None:
    def wide(loop: Stream, *, rebalanced: bool) -> tuple[Stream, Stream]:
        step = loop.rebalance().filter(AGAIN, parallelism=3, name="wide")
        return step.rebalance() if rebalanced else step, step

    told = refusal(lambda loop: wide(loop, rebalanced=False))
    assert told.startswith("iterate 'rounds': again comes from filter 'wide' (")
    assert told.endswith(
        "with parallelism 3, and the loop has 2; make them equal, or return again.rebalance()"
    )
    built = plan(records().iterate(lambda loop: wide(loop, rebalanced=True), name="rounds"))
    assert [e.partitioner for e in built.edges if e.feedback] == [Rebalance()]
