"""Wiring: every channel of the plan has its two ends, whichever worker holds them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.buffer import ChannelId
from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.contract.execution import EdgePlan, ExecutionPlan, OperatorPlan, TaskPlan
from headrace.engine.contract.operators import Operator, SinkWriter, SourceReader
from headrace.engine.worker.subtask_events import SubtaskId
from headrace.engine.worker.subtask_spec import Limits
from headrace.engine.worker.wiring import channels_from, channels_to, subtask_specs, subtasks_of
from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot

SCHEMA = pa.schema([("x", pa.int64())])
LIMITS = Limits(100, 400, 100, 64, 1_000_000)


def never_source() -> SourceReader:
    raise AssertionError("nothing is opened here")


def never_operator() -> Operator:
    raise AssertionError("nothing is opened here")


def never_sink() -> SinkWriter:
    raise AssertionError("nothing is opened here")


def edge(
    index: int, producer: int, consumer: int, partitioner: Partitioner, port: int = 0
) -> EdgePlan:
    return EdgePlan(
        index, f"{producer}->{consumer}/{port}", producer, consumer, port, partitioner, SCHEMA
    )


def plan() -> ExecutionPlan:
    """Two sources (x2, x3) into one operator (x2), which feeds a sink (x2) and a broadcast (x1)."""
    tasks = (
        TaskPlan(0, "a", (OperatorPlan("a", source=never_source),), 2, (), (0,)),
        TaskPlan(1, "b", (OperatorPlan("b", source=never_source),), 3, (), (1,)),
        TaskPlan(2, "join", (OperatorPlan("join", operator=never_operator),), 2, (0, 1), (2, 3)),
        TaskPlan(3, "out", (OperatorPlan("out", sink=never_sink),), 2, (2,), ()),
        TaskPlan(4, "one", (OperatorPlan("one", operator=never_operator),), 1, (3,), ()),
    )
    edges = (
        edge(0, 0, 2, Hash(("x",), 128)),
        edge(1, 1, 2, Rebalance(), port=1),
        edge(2, 2, 3, Forward()),
        edge(3, 2, 4, Broadcast()),
    )
    return ExecutionPlan("job", tasks, edges, 128)


@pytest.mark.parametrize(
    ("slots", "subtasks"),
    [
        ([0], "t0.0 t1.0 t2.0 t3.0 t4.0"),
        ([2, 1], "t0.1 t1.1 t1.2 t2.1 t3.1"),
        ([], ""),
    ],
)
def test_a_slot_holds_its_subtask_of_every_task_that_has_one(
    slots: list[int], subtasks: str
) -> None:
    assert " ".join(map(str, subtasks_of(plan(), slots))) == subtasks


def test_every_channel_has_exactly_one_producer_and_one_consumer() -> None:
    whole = plan()
    for each in whole.edges:
        producers = range(whole.tasks[each.producer].parallelism)
        consumers = range(whole.tasks[each.consumer].parallelism)
        leaving = [c for producer in producers for c in channels_from(whole, each, producer)]
        arriving = [c for consumer in consumers for c in channels_to(whole, each, consumer)]
        assert sorted(leaving) == sorted(arriving)
        assert len(set(leaving)) == len(leaving)


def test_a_forward_edge_joins_equals_only() -> None:
    whole = plan()
    assert channels_from(whole, whole.edges[2], 1) == [ChannelId(2, 1, 1)]
    assert channels_to(whole, whole.edges[2], 0) == [ChannelId(2, 0, 0)]


def test_the_specs_of_all_workers_hold_every_subtask_once() -> None:
    whole = plan()
    specs = [s for slots in ([0], [1, 2]) for s in subtask_specs(whole, slots, LIMITS, [])]
    assert sorted(s.id for s in specs) == sorted(
        SubtaskId(task.index, subtask)
        for task in whole.tasks
        for subtask in range(task.parallelism)
    )


def test_a_spec_lists_channels_by_port_and_by_output_edge() -> None:
    (spec,) = [s for s in subtask_specs(plan(), [1], LIMITS, []) if s.id == SubtaskId(2, 1)]
    assert [list(map(str, port)) for port in spec.inputs] == [
        ["e0:0>1", "e0:1>1"],
        ["e1:0>1", "e1:1>1", "e1:2>1"],
    ]
    assert [list(map(str, output)) for output in spec.outputs] == [["e2:1>1"], ["e3:1>0"]]
    assert (spec.is_source, spec.is_sink, spec.finished) == (False, False, False)


def test_sources_and_sinks_are_told_what_they_are() -> None:
    specs = {s.id: s for s in subtask_specs(plan(), [0], LIMITS, [])}
    assert [s.is_source for s in specs.values()] == [True, True, False, False, False]
    assert [s.is_sink for s in specs.values()] == [False, False, False, True, False]


def test_a_snapshot_gives_its_subtask_back_its_positions() -> None:
    received = ChannelPosition(2, 0, 0, 7, ended=True)
    snapshot = SubtaskSnapshot(3, 0, True, [], [received], [])
    specs = {s.id: s for s in subtask_specs(plan(), [0], LIMITS, [snapshot])}
    restored = specs[SubtaskId(3, 0)]
    assert restored.finished
    assert restored.received == {ChannelId(2, 0, 0): received}
    assert not specs[SubtaskId(2, 0)].finished
    assert not specs[SubtaskId(2, 0)].received
