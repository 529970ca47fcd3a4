"""Joins on RocksDB: whatever comes, in whatever order, they emit what those in memory do; SQL
is the judge of those (`test_join.py`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import RestoredState, StateKind
from headrace.engine.operators.join import How, Interval, JoinOperator
from headrace.engine.operators.join_input import JoinInput
from headrace.engine.operators.windows import TimeWindow

from .rocks_cases import context
from .test_join import BOUNDS, HOWS, LEFT, RIGHT, SECOND, STEPS, Step, batch_of, run
from .window_cases import tables_of

HISTORIES = settings(max_examples=15)
KINDS = st.sampled_from([["rocksdb"], ["heap", "rocksdb"]])


def compare(
    steps: list[Step], match: Interval | TimeWindow, how: How, kinds: list[str]
) -> list[dict[str, Any]]:
    heap, _ = run(steps, match, how)
    with tempfile.TemporaryDirectory() as folder:
        disk, _ = run(steps, match, how, Path(folder), kinds)
    assert sorted(map(repr, disk.emitted)) == sorted(map(repr, heap.emitted))
    assert sorted(map(repr, disk.late)) == sorted(map(repr, heap.late))
    return disk.emitted


@HISTORIES
@given(STEPS, BOUNDS, HOWS, KINDS)
def test_interval_joins_do_what_those_in_memory_do(
    steps: list[Step], bounds: tuple[int, int], how: How, kinds: list[str]
) -> None:
    compare(steps, Interval(bounds[0] * SECOND, bounds[1] * SECOND), how, kinds)


@HISTORIES
@given(STEPS, st.sampled_from([(10, 10), (10, 5), (7, 3)]), HOWS, KINDS)
def test_windowed_joins_do_what_those_in_memory_do(
    steps: list[Step], size: tuple[int, int], how: How, kinds: list[str]
) -> None:
    compare(steps, TimeWindow(size[0] * SECOND, size[1] * SECOND), how, kinds)


def opened(folder: Path, how: How = "full", left: JoinInput = LEFT) -> JoinOperator:
    match = Interval(-5 * SECOND, 5 * SECOND)
    operator = JoinOperator(left, RIGHT, match, how, 1, operator="j")
    operator.open(context(folder))
    return operator


def emitted(operator: JoinOperator, side: int, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    found = [row for b in operator.process(batch_of(side, rows), side) for row in b.to_pylist()]
    operator.commit()
    return found


def test_records_that_are_done_with_leave_nothing_behind(tmp_path: Path) -> None:
    operator = opened(tmp_path)
    emitted(operator, 0, *((key, 0.5, time, time) for key in "abc" for time in (-7, 0, 3)))
    emitted(operator, 1, ("a", 0.5, 4, 100), ("d", 0.5, 4, 101))
    alone = 0
    done = False
    while not done:
        advanced = operator.advance(60 * SECOND, 2)
        operator.commit()
        alone += sum(batch.num_rows for batch in advanced.batches)
        done = advanced.done
    assert alone == 8
    found = {name: table.num_rows for name, table in tables_of(operator).items()}
    assert [found[name] for name in ("left", "left_due", "right", "right_due")] == [0] * 4
    operator.close()
    assert list(tmp_path.iterdir()) == []


def test_equal_records_are_different_ones_also_after_a_restore(tmp_path: Path) -> None:
    first = opened(tmp_path, "inner")
    emitted(first, 0, ("a", 0.5, 1, 7), ("a", 0.5, 1, 7))
    tables = tables_of(first)
    assert tables["sequence"]["next"].to_pylist() == [2] * 16
    first.close()
    second = opened(tmp_path, "inner")
    second.restore([RestoredState(n, StateKind.KEYED, table) for n, table in tables.items()])
    emitted(second, 0, ("a", 0.5, 1, 7))
    assert len(emitted(second, 1, ("a", 0.5, 2, 8))) == 3
    second.close()


def test_records_of_all_types_come_back_as_they_were(tmp_path: Path) -> None:
    types = {
        "word": pa.dictionary(pa.int32(), pa.string()),
        "price": pa.decimal128(10, 2),
        "tags": pa.list_(pa.string()),
        "day": pa.date32(),
        "share": pa.float32(),
        "found": pa.map_(pa.string(), pa.int64()),
    }
    schema = pa.schema([*LEFT.schema, *types.items()])
    row = {"id": 1, "k": "a", "m": 0.5, "t": 3}
    full = row | {"word": "w", "tags": ["x", None], "day": 5, "share": 0.5, "found": [("y", 1)]}
    batch = pa.RecordBatch.from_arrays(
        [pa.array([full.get(f.name), row.get(f.name)], f.type) for f in schema], schema=schema
    )
    operator = opened(tmp_path, "inner", JoinInput(LEFT.keys, "t", schema))
    list(operator.process(batch, 0))
    operator.commit()
    found = list(operator.process(batch_of(1, [("a", 0.5, 2, 8)]), 1))
    assert sorted(map(repr, pa.Table.from_batches(found).select(schema.names).to_pylist())) == (
        sorted(map(repr, batch.to_pylist()))
    )
    operator.close()


def test_states_of_other_columns_are_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    operator = opened(tmp_path)
    emitted(operator, 0, ("a", 0.5, 1, 7))
    held = [RestoredState(n, StateKind.KEYED, t) for n, t in tables_of(operator).items()]
    operator.close()
    same = JoinOperator(LEFT, RIGHT, Interval(-5, 5), "inner", 1, operator="j")
    same.check_states(held)
    wider = JoinInput(LEFT.keys, "t", LEFT.schema.append(pa.field("more", pa.int64())))
    other = JoinOperator(wider, RIGHT, Interval(-5, 5), "inner", 1, operator="j")
    with pytest.raises(UserError, match="holds state 'left'"):
        other.check_states(held)


def test_the_watermark_of_the_end_lets_go_of_all(tmp_path: Path) -> None:
    operator = opened(tmp_path, "left")
    emitted(operator, 0, ("a", 0.5, 1, 7))
    emitted(operator, 1, ("b", 0.5, 1, 8))
    (alone,) = operator.advance(MAX_WATERMARK, 100).batches
    assert alone["id"].to_pylist() == [7]
    operator.close()


def test_who_has_met_one_is_not_emitted_alone_also_when_that_was_in_another_call(
    tmp_path: Path,
) -> None:
    operator = opened(tmp_path)
    assert emitted(operator, 0, ("a", 0.5, 1, 7), ("b", 0.5, 1, 8)) == []
    assert len(emitted(operator, 1, ("a", 0.5, 2, 9))) == 1
    assert tables_of(operator)["left"]["__matched"].to_pylist().count(True) == 1
    (alone,) = operator.advance(MAX_WATERMARK, 100).batches
    assert alone["id"].to_pylist() == [8]
    operator.close()
