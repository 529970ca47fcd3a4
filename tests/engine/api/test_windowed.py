from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.execution import ExecutionPlan, Output
from headrace.engine.operators.session import SessionOperator
from headrace.engine.operators.window import TimeWindowOperator

CLICKS = pa.schema([("user", pa.string()), ("at", pa.timestamp("ms", "UTC")), ("ms", pa.int64())])


def clicks() -> Stream:
    stream = batches([pa.RecordBatch.from_pylist([], schema=CLICKS)], name="clicks")
    return replace(stream, event_time="at")


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def plan_of(*streams: Stream) -> ExecutionPlan:
    sinks = [stream.write.collect(name=f"out{i}") for i, stream in enumerate(streams)]
    return hr.Job("clicks", *sinks, parallelism=2).plan()


def test_the_result_has_keys_then_bounds_then_aggregations() -> None:
    windows = clicks().key_by("user").window(hr.tumbling("1m"))
    result = windows.aggregate(n=hr.count(), ms=hr.max("ms"), name="per-minute")
    assert result.schema.names == ["user", "window_start", "window_end", "n", "ms"]
    assert result.schema.field("window_end").type == CLICKS.field("at").type
    assert result.late.schema == CLICKS


def test_each_kind_of_window_has_its_operator() -> None:
    keyed = clicks().key_by("user")
    for window, class_ in (
        (hr.tumbling("1m"), TimeWindowOperator),
        (hr.sliding("1m", every="10s"), TimeWindowOperator),
        (hr.session("30s"), SessionOperator),
    ):
        result = keyed.window(window, lateness="5s").aggregate(n=hr.count(), name="w")
        make = result.inputs[0].node.operator
        assert make is not None
        assert type(make(operator="w")) is class_


def test_first_and_last_of_a_window_are_by_event_time() -> None:
    day = pa.timestamp("ms", "UTC")
    # Two sessions, which the third record makes one.
    rows = [("a", 30_000, 3), ("a", 0, 1), ("a", 15_000, 2)]
    columns = [
        pa.array(cells, f.type) for f, cells in zip(CLICKS, zip(*rows, strict=True), strict=True)
    ]
    several = [
        pa.RecordBatch.from_arrays([c.slice(n, 1) for c in columns], schema=CLICKS)
        for n in range(3)
    ]
    for window in (hr.session("20s"), hr.tumbling("1m")):
        result = (
            batches(several, name="clicks")
            .with_watermark("at", "1h")
            .key_by("user")
            .window(window)
            .aggregate(
                first=hr.first("ms"), last=hr.last("ms"), by_ms=hr.last("at", by="ms"), name="w"
            )
        )
        job = hr.Job("clicks", result.write.collect(name="out"), parallelism=1)
        (row,) = job.run(runner="threads").collected["out"].to_pylist()
        assert (row["first"], row["last"]) == (1, 3)
        assert pa.scalar(row["by_ms"], day).value == 30_000


def test_late_records_go_out_on_edges_of_their_own() -> None:
    result = clicks().key_by("user").window(hr.tumbling("1m")).aggregate(n=hr.count(), name="w")
    plan = plan_of(result, result.late)
    edges = {edge.key: edge for edge in plan.edges}
    assert edges["w->out0/0"].schema == result.schema
    assert edges["w (late)->out1/0"].schema == CLICKS
    (task,) = [task for task in plan.tasks if task.name == "w"]
    assert task.outputs == (edges["w->out0/0"].index, edges["w (late)->out1/0"].index)
    assert task.late_outputs == (edges["w (late)->out1/0"].index,)


def test_a_window_whose_late_records_alone_are_taken_stays_the_tail_of_its_chain() -> None:
    result = clicks().key_by("user").window(hr.tumbling("1m")).aggregate(n=hr.count(), name="w")
    plan = plan_of(result.late)
    (edge,) = [edge for edge in plan.edges if edge.output is Output.LATE]
    assert edge.key == "w (late)->out0/0"


def test_mistakes_are_told_in_one_sentence() -> None:
    keyed = clicks().key_by("user")
    timeless = replace(clicks(), event_time=None).key_by("user")
    assert "window needs to know which column" in sentence(
        lambda: timeless.window(hr.tumbling("1m"))
    )
    assert "window takes hr.tumbling" in sentence(lambda: keyed.window("1m"))  # type: ignore[arg-type]
    assert "lateness='soon' is not a duration" in sentence(
        lambda: keyed.window(hr.tumbling("1m"), lateness="soon")
    )
    assert "cannot be written as timestamp[ms" in sentence(lambda: keyed.window(hr.tumbling("1us")))
    windows = keyed.window(hr.tumbling("1m"))
    assert "aggregate needs name=" in sentence(lambda: windows.aggregate(n=hr.count()))
    assert "at least one aggregation" in sentence(lambda: windows.aggregate(name="w"))
    assert "there is no column 'mss'" in sentence(
        lambda: windows.aggregate(n=hr.sum("mss"), name="w")
    )
    assert "'window_end' is a column of the result; rename the aggregation" in sentence(
        lambda: windows.aggregate(window_end=hr.count(), name="w")
    )
