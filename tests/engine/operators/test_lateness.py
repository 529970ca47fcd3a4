"""Subtasks that had come to different times are brought together by a rescale."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK
from headrace.channels.keygroups import key_group_range, key_groups
from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.join import Interval, JoinOperator
from headrace.engine.operators.join_input import JoinInput
from headrace.engine.operators.lateness import LateRecords, Watermarks
from headrace.engine.operators.window import TimeWindowOperator
from headrace.engine.operators.window_output import window_schema
from headrace.engine.operators.window_store import WindowAggregate
from headrace.engine.operators.windows import TimeWindow

MAX_PARALLELISM = 8
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("ns"))])
COUNT = {"n": agg.count()}


def context(index: int, parallelism: int) -> OperatorContext:
    return OperatorContext("job", "o", index, parallelism, MAX_PARALLELISM, 0)


def batch_of(*rows: tuple[int, int]) -> pa.RecordBatch:
    columns = [pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows]).view(SCHEMA[1].type)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def keys_of_both() -> tuple[int, int]:
    """A key of each of two subtasks."""
    keys = batch_of(*((key, 0) for key in range(100)))
    first = np.isin(
        key_groups(keys, ["k"], MAX_PARALLELISM), key_group_range(MAX_PARALLELISM, 2, 0)
    )
    return int(np.flatnonzero(first)[0]), int(np.flatnonzero(~first)[0])


def ahead_and_behind() -> list[RestoredState]:
    """Watermarks of two subtasks: the first has come to 61, the second to 50."""
    states = []
    for index, time in enumerate((61, 50)):
        watermarks = Watermarks(context(index, 2))
        watermarks.advance(time)
        watermarks.commit()
        state = watermarks.snapshot()
        states.append(RestoredState(state.name, state.kind, state.table()))
    return states


def test_a_key_group_keeps_the_watermark_that_it_had_until_all_have_come_to_it() -> None:
    first, second = keys_of_both()
    watermarks = Watermarks(context(0, 1))
    watermarks.restore(ahead_and_behind())
    watermarks.advance(50)
    both = batch_of((first, 0), (second, 0))
    found = watermarks.of(both, ["k"])
    assert not isinstance(found, int)
    assert found.tolist() == [61, 50]
    watermarks.advance(55)
    found = watermarks.of(both, ["k"])
    assert not isinstance(found, int)
    assert found.tolist() == [61, 55]
    watermarks.advance(61)
    assert watermarks.of(both, ["k"]) == 61


def test_a_snapshot_has_what_was_committed_group_by_group() -> None:
    watermarks = Watermarks(context(0, 1))
    watermarks.restore(ahead_and_behind())
    watermarks.advance(70)
    table = watermarks.snapshot().table()
    assert table["__key_group"].to_pylist() == list(range(MAX_PARALLELISM))
    assert table["watermark"].to_pylist() == [61] * 4 + [50] * 4
    watermarks.commit()
    assert watermarks.snapshot().table()["watermark"].to_pylist() == [70] * 8


def test_a_window_that_was_emitted_does_not_open_again_after_a_rescale() -> None:
    first, second = keys_of_both()
    out = window_schema(["k"], "t", COUNT, SCHEMA)
    spec = WindowAggregate(["k"], "t", 0, COUNT, SCHEMA, out)
    operator = TimeWindowOperator(TimeWindow(60, 60), spec, operator="o")
    operator.open(context(0, 1))
    operator.restore(ahead_and_behind())
    operator.advance(50, 100)
    operator.process(batch_of((first, 55), (second, 55), (first, 65)), 0)
    assert [b.to_pylist() for b in operator.take_late()] == [batch_of((first, 55)).to_pylist()]
    operator.commit()
    (emitted,) = operator.advance(200, 100).batches
    assert sorted(zip(emitted["k"].to_pylist(), emitted["n"].to_pylist(), strict=True)) == sorted(
        [(first, 1), (second, 1)]
    )


def test_what_a_join_has_let_go_of_is_late_after_a_rescale() -> None:
    first, second = keys_of_both()
    side = JoinInput(("k",), "t", SCHEMA)
    operator = JoinOperator(side, side, Interval(-5, 5), "full", 1, operator="o")
    operator.open(context(0, 1))
    operator.restore(ahead_and_behind())
    operator.advance(50, 100)
    assert list(operator.process(batch_of((first, 55), (second, 55)), 0)) == []
    assert [b.to_pylist() for b in operator.take_late()] == [batch_of((first, 55)).to_pylist()]


def test_without_a_checkpoint_nothing_is_late() -> None:
    assert Watermarks(context(0, 1)).of(batch_of((1, 1)), ["k"]) == MIN_WATERMARK


def test_late_records_are_handed_out_once() -> None:
    late = LateRecords()
    late.add(batch_of((1, 1), (2, 2)), np.array([False, True]))
    late.add(batch_of((3, 3)), np.array([False]))
    late.add(batch_of((4, 4)), np.array([True]))
    assert [b["k"].to_pylist() for b in late.take()] == [[2], [4]]
    assert late.take() == []
