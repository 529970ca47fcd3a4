"""Windows on RocksDB: whatever comes, in whatever order, they emit what those in memory do; SQL
is the judge of those (`test_window.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserError
from headrace.engine.operators.windows import SessionWindow, TimeWindow, Window

from .rocks_cases import context, frozen, stored, tables
from .test_window import SECOND, STEPS, WINDOWS, Step, batch_of, maker
from .window_cases import Subtasks, tables_of

HISTORIES = settings(max_examples=12)


def played(
    window: Window, lateness: int, steps: Sequence[Step], folder: Path | None, kinds: Sequence[str]
) -> Subtasks:
    """Play a history; at each rescale the next of `kinds` takes over."""
    subtasks = Subtasks(maker(window, lateness), [["k"]], 1, folder)
    done, newest = 0, -100
    for index, step in enumerate(steps):
        subtasks.process(batch_of(step.rows, done))
        done += len(step.rows)
        newest = max([newest, *(row[1] for row in step.rows)])
        if step.delay is not None:
            halfway = step.halfway and step.parallelism
            advance = subtasks.advance_half if halfway else subtasks.advance
            advance((newest - step.delay) * SECOND)
        if step.parallelism:
            kind = None if folder is None else kinds[index % len(kinds)]
            subtasks.rescale(step.parallelism, kind)
    subtasks.advance(MAX_WATERMARK)
    subtasks.close()
    return subtasks


def rows_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@HISTORIES
@given(STEPS, WINDOWS, st.sampled_from([0, 7]), st.sampled_from([["rocksdb"], ["heap", "rocksdb"]]))
def test_time_windows_do_what_those_in_memory_do(
    steps: list[Step], size: tuple[int, int], lateness: int, kinds: list[str]
) -> None:
    window = TimeWindow(size[0] * SECOND, size[1] * SECOND)
    compare(window, lateness, steps, kinds)


@HISTORIES
@given(
    STEPS,
    st.integers(1, 12),
    st.sampled_from([0, 7]),
    st.sampled_from([["rocksdb"], ["heap", "rocksdb"]]),
)
def test_sessions_do_what_those_in_memory_do(
    steps: list[Step], gap: int, lateness: int, kinds: list[str]
) -> None:
    compare(SessionWindow(gap * SECOND), lateness, steps, kinds)


def compare(window: Window, lateness: int, steps: list[Step], kinds: list[str]) -> None:
    heap = played(window, lateness, steps, None, kinds)
    with tempfile.TemporaryDirectory() as folder:
        disk = played(window, lateness, steps, Path(folder), kinds)
    assert rows_of(disk.emitted) == rows_of(heap.emitted)
    assert rows_of(disk.late) == rows_of(heap.late)


@pytest.mark.parametrize("window", [TimeWindow(10 * SECOND, 5 * SECOND), SessionWindow(SECOND)])
def test_windows_that_are_done_with_leave_nothing_behind(window: Window, tmp_path: Path) -> None:
    operator = maker(window, 3)()
    operator.open(context(tmp_path))
    rows = [(key, time, 1) for key in "abc" for time in (-7, 0, 3, 20)]
    operator.process(batch_of(rows), 0)
    operator.commit()
    for watermark in (2, 4, 26, 40):
        done = False
        while not done:
            done = operator.advance(watermark * SECOND, 2).done
            operator.commit()
    found = tables_of(operator)
    assert {name: table.num_rows for name, table in found.items() if name != "watermark"} == {
        operator.state_name: 0,
        f"{operator.state_name}_due": 0,
    }
    operator.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("window", [TimeWindow(10 * SECOND, 10 * SECOND), SessionWindow(SECOND)])
def test_what_a_call_wrote_is_seen_by_its_later_batches_and_as_time_moves_on(
    window: Window, tmp_path: Path
) -> None:
    operator = maker(window, 0)()
    operator.open(context(tmp_path))
    operator.process(batch_of([("a", 1, 5)]), 0)
    operator.process(batch_of([("a", 1, 6), ("b", 2, 7)]), 0)
    (emitted,) = operator.advance(30 * SECOND, 100).batches
    assert sorted(emitted["sum"].to_pylist()) == [7, 11]
    operator.close()


def test_windows_fire_in_the_order_of_their_ends_whatever_the_key_group(tmp_path: Path) -> None:
    operator = maker(TimeWindow(SECOND, SECOND), 0)()
    operator.open(context(tmp_path))
    operator.process(batch_of([(f"k{i}", (37 * i) % 41 - 20, 1) for i in range(41)]), 0)
    operator.commit()
    ends: list[Any] = []
    done = False
    while not done:
        advanced = operator.advance(MAX_WATERMARK, 4)
        operator.commit()
        done = advanced.done
        ends += [end for batch in advanced.batches for end in batch["window_end"].to_pylist()]
    assert len(ends) == 41
    assert ends == sorted(ends)
    operator.close()


def test_a_checkpoint_of_other_windows_is_refused(tmp_path: Path) -> None:
    operator = maker(TimeWindow(10 * SECOND, 10 * SECOND), 0)()
    operator.open(context(tmp_path))
    operator.process(batch_of([("a", 1, 5)]), 0)
    operator.commit()
    restored = stored(frozen(operator), tmp_path)(1, 0)
    operator.close()
    other = maker(TimeWindow(20 * SECOND, 20 * SECOND), 0)()
    other.open(context(tmp_path))
    with pytest.raises(UserError, match="holds windows of 10 s"):
        other.restore_databases([restored])
    other.close()


def test_its_table_has_the_columns_of_the_one_in_memory(tmp_path: Path) -> None:
    operators = [maker(SessionWindow(SECOND), 0)() for _ in range(2)]
    found: list[pa.Table] = []
    for operator, kind in zip(operators, ("heap", "rocksdb"), strict=True):
        operator.open(context(tmp_path, kind))
        operator.process(batch_of([("a", 1, 5), (None, -3, None)]), 0)
        operator.commit()
        found.append(tables_of(operator)["sessions"])
    assert found[0].schema == found[1].schema
    assert rows_of(found[0].to_pylist()) == rows_of(found[1].to_pylist())
    assert list(tables(frozen(operators[1]))) == ["sessions", "sessions_due"]
    for operator in operators:
        operator.close()
