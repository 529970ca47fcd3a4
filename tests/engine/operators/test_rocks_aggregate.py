"""The aggregate on RocksDB: whatever comes, it emits and stores what the one on the heap does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.keygroups import key_group_range, key_groups
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import RestoredState
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateOperator, AggregateRows, Emit
from headrace.engine.state.rocks import database

from .rocks_cases import MAX_PARALLELISM, context, frozen, stored, tables
from .test_aggregate import ALL, KEYS, ROWS, SCHEMA, batch_of, cells_of, table_of

BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=2), max_size=5)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def opened(
    place: Path, keys: list[str], emit: Emit, kind: str, index: int = 0, parallelism: int = 1
) -> AggregateOperator:
    operator = AggregateOperator(keys, ALL, SCHEMA, emit, operator="totals")
    operator.open(context(place, kind, index=index, parallelism=parallelism))
    return operator


def rows_of(table: pa.Table) -> set[tuple[Any, ...]]:
    return {cells_of(row) for row in table.to_pylist()}


@settings(max_examples=20)
@given(BATCHES, KEYS, st.sampled_from(["changes", "final"]))
def test_it_does_what_the_heap_does(batches: Any, keys: list[str], emit: Emit) -> None:
    with folder() as place:
        both = [opened(place, keys, emit, kind) for kind in ("heap", "rocksdb")]
        heap, rocks = both
        for call in batches:
            for rows in call:
                emitted = [list(o.process(batch_of(rows), 0)) for o in both]
                assert emitted[0] == emitted[1]
            before = table_of(heap), frozen(rocks)
            for operator in both:
                operator.commit()
            assert rows_of(tables(before[1])["aggregate"]) == rows_of(before[0])
        finished = [[r for b in o.finish() for r in rows_of(b)] for o in both]
        assert sorted(map(repr, finished[0])) == sorted(map(repr, finished[1]))
        table = tables(frozen(rocks))["aggregate"]
        assert rows_of(table) == rows_of(table_of(heap))
        assert table.schema == table_of(heap).schema
        for operator in both:
            operator.close()
        assert list(place.iterdir()) == []


@settings(max_examples=40)
@given(BATCHES, KEYS, st.sampled_from(["changes", "final"]), st.data())
def test_rows_are_forgotten_at_any_time(
    batches: Any, keys: list[str], emit: Emit, data: st.DataObject
) -> None:
    full = st.sampled_from([0, 1 << 40])
    with (
        folder() as place,
        patch.object(database, "_WAITING_LAYERS_MAX", 2),
        patch.object(AggregateRows, "size_bytes", new_callable=PropertyMock) as size,
    ):
        size.side_effect = lambda: data.draw(full)
        both = [opened(place, keys, emit, kind) for kind in ("heap", "rocksdb")]
        heap, rocks = both
        snapshots = []
        for call in batches:
            for rows in call:
                emitted = [list(o.process(batch_of(rows), 0)) for o in both]
                assert emitted[0] == emitted[1]
            for operator in both:
                operator.commit()
            snapshots.append((table_of(heap), frozen(rocks)))
            if data.draw(st.booleans()):
                for expected, snapshot in snapshots:
                    assert rows_of(tables(snapshot)["aggregate"]) == rows_of(expected)
                snapshots.clear()
        for expected, snapshot in snapshots:
            assert rows_of(tables(snapshot)["aggregate"]) == rows_of(expected)
        finished = [[r for b in o.finish() for r in rows_of(b)] for o in both]
        assert sorted(map(repr, finished[0])) == sorted(map(repr, finished[1]))
        for operator in both:
            operator.close()


def test_a_row_at_hand_is_not_read_again(tmp_path: Path) -> None:
    rocks = opened(tmp_path, ["a"], "changes", "rocksdb")
    with patch.object(
        database.RocksDatabase, "get_many", autospec=True, side_effect=lambda _, k: [None] * len(k)
    ) as read:
        for number in (5, 6):
            (found,) = rocks.process(batch_of([(1, "x", number), (2, "x", number)]), 0)
            rocks.commit()
    assert [len(call.args[1]) for call in read.call_args_list] == [2]
    assert found["sum"].to_pylist() == [11, 11]
    rocks.close()


def test_what_one_call_writes_is_seen_by_its_later_batches_and_at_its_end(tmp_path: Path) -> None:
    rocks = opened(tmp_path, ["a"], "final", "rocksdb")
    list(rocks.process(batch_of([(1, "x", 5)]), 0))
    rocks.commit()
    list(rocks.process(batch_of([(1, "x", 6), (2, "x", 7)]), 0))
    list(rocks.process(batch_of([(2, "x", 8)]), 0))
    found = {row["a"]: row["sum"] for batch in rocks.finish() for row in batch.to_pylist()}
    assert found == {1: 11, 2: 15}
    assert tables(frozen(rocks))["aggregate"]["sum"].to_pylist() == [5]
    rocks.close()


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 3), (3, 1), (2, 2), (4, 3), (3, 8), (8, 5)])
def test_it_is_restored_at_any_parallelism_into_either_backend(
    tmp_path: Path, old: int, new: int
) -> None:
    batch = batch_of([(n % 97, "xy"[n % 2], n) for n in range(400)])
    groups = key_groups(batch, ["a", "b"], MAX_PARALLELISM)
    whole = opened(tmp_path, ["a", "b"], "final", "heap")
    list(whole.process(batch, 0))
    whole.commit()
    expected = rows_of(table_of(whole))
    kept = []
    for index in range(old):
        mine = key_group_range(MAX_PARALLELISM, old, index)
        operator = opened(tmp_path, ["a", "b"], "final", "rocksdb", index, old)
        list(operator.process(batch.filter(pa.array([g in mine for g in groups])), 0))
        operator.commit()
        kept.append(stored(frozen(operator), tmp_path))
        operator.close()
    for kind in ("rocksdb", "heap"):
        found: list[tuple[Any, ...]] = []
        for index in range(new):
            mine = key_group_range(MAX_PARALLELISM, new, index)
            operator = opened(tmp_path, ["a", "b"], "final", kind, index, new)
            given_ = [one(new, index) for one in kept]
            given_ = [g for g in given_ if set(g.groups) & set(mine)]
            if operator.restore_databases(given_):
                operator.restore([])
                table = tables(frozen(operator))["aggregate"]
            else:
                operator.restore([state for one in given_ for state in one.tables()])
                table = table_of(operator)
            assert set(table["__key_group"].to_pylist()) <= set(mine)
            found += rows_of(table)
            list(operator.process(batch.slice(0, 1), 0))
            operator.commit()
            operator.close()
        assert len(found) == len(expected)
        assert set(found) == expected, kind


def test_tables_of_the_heap_can_be_restored(tmp_path: Path) -> None:
    heap = opened(tmp_path, ["b"], "final", "heap")
    list(heap.process(batch_of([(1, "x", 5), (2, None, None), (3, "y", 7)]), 0))
    heap.commit()
    (state,) = heap.snapshot()
    rocks = opened(tmp_path, ["b"], "final", "rocksdb")
    rocks.restore([RestoredState(state.name, state.kind, state.table())])
    assert rows_of(tables(frozen(rocks))["aggregate"]) == rows_of(table_of(heap))
    rocks.close()


def test_other_columns_are_refused(tmp_path: Path) -> None:
    rocks = opened(tmp_path, ["b"], "final", "rocksdb")
    list(rocks.process(batch_of([(1, "x", 5)]), 0))
    rocks.commit()
    kept = stored(frozen(rocks), tmp_path)
    rocks.close()
    other = AggregateOperator(["b"], {"n": agg.count()}, SCHEMA, operator="totals")
    other.open(context(tmp_path))
    restored = kept(1, 0)
    assert not other.restore_databases([restored])
    with pytest.raises(UserError, match="holds state 'aggregate' as"):
        other.restore(restored.tables())
    other.close()


def test_a_sum_that_leaves_its_range_is_found_though_it_began_on_disk(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    rocks = AggregateOperator(["k"], {"s": agg.sum("v")}, schema, operator="totals")
    rocks.open(context(tmp_path))
    batch = pa.RecordBatch.from_pydict({"k": [1], "v": [(1 << 62)]}, schema)
    list(rocks.process(batch, 0))
    rocks.commit()
    with pytest.raises(UserCodeError, match="range of int64"):
        list(rocks.process(batch, 0))
    rocks.close()
