from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.keygroups import key_group_range
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import (
    OperatorContext,
    RestoredState,
    StateBackend,
    StateKind,
)
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateOperator, Emit

from .rocks_cases import context

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int32())])
ALL = {
    "rows": agg.count(),
    "n": agg.count("v"),
    "sum": agg.sum("v"),
    "min": agg.min("v"),
    "max": agg.max("v"),
    "mean": agg.mean("v"),
    "first": agg.first("v"),
    "last": agg.last("v"),
    "newest": agg.last("b", by="v"),
    "distinct": agg.count_distinct("v"),
    "list": agg.collect_list("v"),
    "median": agg.quantile("v", 0.5),
}
MAX_PARALLELISM = 16
Row = tuple[int | None, str | None, int | None]
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from(["x", "y"]),
        st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    ),
    min_size=1,
    max_size=30,
)
KEYS = st.sampled_from([["a"], ["b"], ["a", "b"]])


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def operator_of(keys: list[str], emit: Emit = "final") -> AggregateOperator:
    operator = AggregateOperator(keys, ALL, SCHEMA, emit, operator="totals")
    operator.open(OperatorContext("job", "totals", 0, 1, MAX_PARALLELISM, 0))
    return operator


def table_of(operator: AggregateOperator) -> pa.Table:
    (state,) = operator.snapshot()
    assert (state.name, state.kind) == ("aggregate", StateKind.KEYED)
    return state.table()


def cells_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row's values, hashable."""
    return tuple(tuple(cell) if isinstance(cell, list) else cell for cell in row.values())


def by_key(batches: Iterable[pa.RecordBatch], keys: int) -> dict[Any, Any]:
    rows = [cells_of(row) for batch in batches for row in batch.to_pylist()]
    found = {row[:keys]: row[keys:] for row in rows}
    assert len(found) == len(rows), "one row per key"
    return found


def model_of(rows: Iterable[Row], keys: list[str]) -> dict[Any, Any]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        named = dict(zip(SCHEMA.names, row, strict=True))
        groups.setdefault(tuple(named[key] for key in keys), []).append(row)
    return {key: expected(of_key) for key, of_key in groups.items()}


def expected(rows: list[Row]) -> tuple[Any, ...]:
    found = [value for _, _, value in rows if value is not None]
    if not found:
        return (len(rows), 0, *[None] * 7, 0, (), None)
    timed = [(value, at, text) for at, (_, text, value) in enumerate(rows)]
    newest = max((row for row in timed if None not in row), default=(0, 0, None))[2]
    mean, median = sum(found) / len(found), statistics.median(map(float, found))
    extremes = (min(found), max(found), mean, found[0], found[-1], newest)
    gathered = (len(set(found)), tuple(found), median)
    return (len(rows), len(found), sum(found), *extremes, *gathered)


@given(st.lists(ROWS, max_size=5), KEYS)
def test_final_rows_equal_a_dictionary_of_groups(batches: list[list[Row]], keys: list[str]) -> None:
    operator = operator_of(keys)
    for rows in batches:
        assert list(operator.process(batch_of(rows), 0)) == []
        operator.commit()
    model = model_of((row for rows in batches for row in rows), keys)
    assert by_key(operator.finish(), len(keys)) == model


@given(st.lists(ROWS, max_size=5), KEYS)
def test_changes_are_the_touched_keys_with_their_values_so_far(
    batches: list[list[Row]], keys: list[str]
) -> None:
    operator = operator_of(keys, "changes")
    so_far: list[Row] = []
    for rows in batches:
        so_far += rows
        touched = model_of(rows, keys)
        model = {k: v for k, v in model_of(so_far, keys).items() if k in touched}
        assert by_key(operator.process(batch_of(rows), 0), len(keys)) == model
        operator.commit()
    assert list(operator.finish()) == []


@given(ROWS, ROWS, KEYS)
def test_a_snapshot_between_process_and_commit_is_the_state_before(
    first: list[Row], second: list[Row], keys: list[str]
) -> None:
    operator = operator_of(keys)
    operator.process(batch_of(first), 0)
    operator.commit()
    before = table_of(operator)
    operator.process(batch_of(second), 0)
    operator.process(batch_of(first), 0)
    assert table_of(operator).equals(before)
    operator.commit()
    assert not table_of(operator).equals(before)


@given(ROWS, ROWS, KEYS, st.integers(1, 4))
def test_restored_pieces_go_on_like_the_whole(
    first: list[Row], second: list[Row], keys: list[str], parallelism: int
) -> None:
    operator = operator_of(keys)
    operator.process(batch_of(first), 0)
    operator.commit()
    table = table_of(operator)
    groups = table["__key_group"].to_numpy()
    pieces = []
    for index in range(parallelism):
        owned = key_group_range(MAX_PARALLELISM, parallelism, index)
        start, end = np.searchsorted(groups, [owned.start, owned.stop])
        pieces.append(RestoredState("aggregate", StateKind.KEYED, table.slice(start, end - start)))
    restored = operator_of(keys)
    restored.restore(pieces)
    names = ["__key_group", *keys]
    order = [(name, "ascending") for name in names]
    assert table_of(restored).sort_by(order).equals(table.sort_by(order))
    for each in (operator, restored):
        each.process(batch_of(second), 0)
        each.commit()
    assert by_key(restored.finish(), len(keys)) == by_key(operator.finish(), len(keys))


def test_a_snapshot_in_another_thread_is_a_prefix_of_the_commits() -> None:
    operator = AggregateOperator(
        ["k"],
        {"n": agg.count(), "s": agg.sum("v")},
        pa.schema([("k", pa.int64()), ("v", pa.int64())]),
        "final",
    )
    operator.open(OperatorContext("job", "totals", 0, 1, MAX_PARALLELISM, 0))
    working, idle, done = threading.Event(), threading.Event(), threading.Event()
    size = 2000

    def work() -> None:
        for round_ in range(40):
            assert working.wait(30)
            working.clear()
            # Each batch brings new keys and touches all earlier ones, so that everything grows.
            keys = np.arange(size + round_ * 500) % (500 * (round_ + 1))
            operator.process(pa.record_batch({"k": keys, "v": np.ones(len(keys), np.int64)}), 0)
            idle.set()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    rows = taken = 0
    for round_ in range(40):
        working.set()
        while True:
            table = table_of(operator)
            taken += 1
            assert sum(table["n"].to_pylist()) == rows
            assert table["n"].equals(table["s"])
            if idle.is_set():
                break
        idle.clear()
        operator.commit()
        rows += size + round_ * 500
    thread.join(60)
    assert done.is_set()
    assert taken >= 40
    assert sum(table_of(operator)["n"].to_pylist()) == rows


def test_what_was_frozen_does_not_change_with_later_commits() -> None:
    operator = operator_of(["a"])
    operator.process(batch_of([(1, "x", 5)]), 0)
    operator.commit()
    (state,) = operator.snapshot()
    operator.process(batch_of([(1, "x", 6), (2, "x", 7)]), 0)
    operator.commit()
    assert state.table().select(["a", "rows", "sum"]).to_pylist() == [{"a": 1, "rows": 1, "sum": 5}]


def test_an_overflow_names_operator_aggregation_and_column() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = AggregateOperator(["k"], {"total": agg.sum("v")}, schema, operator="totals")
    operator.open(OperatorContext("job", "totals", 0, 1, MAX_PARALLELISM, 0))
    with pytest.raises(UserCodeError, match=r"'totals'.*'total'.*'v'.*float64"):
        operator.process(pa.record_batch({"k": [1, 1], "v": [(1 << 63) - 1, 1]}), 0)


def test_state_of_other_aggregations_is_refused() -> None:
    operator = operator_of(["a"])
    operator.process(batch_of([(1, "x", 5)]), 0)
    operator.commit()
    changed = AggregateOperator(["a"], {"rows": agg.count()}, SCHEMA, operator="totals")
    with pytest.raises(UserError, match="'totals'"):
        changed.restore([RestoredState("aggregate", StateKind.KEYED, table_of(operator))])


def test_a_mistake_is_found_before_a_backend_is_opened() -> None:
    with pytest.raises(UserError):
        AggregateOperator(["b"], {"sum": agg.sum("b")}, SCHEMA, backend=StateBackend("rocksdb"))


def test_an_operator_says_where_its_state_lies_before_the_job_does(tmp_path: Path) -> None:
    for stated, job in (("rocksdb", "heap"), ("heap", "rocksdb")):
        operator = AggregateOperator(
            ["b"], ALL, SCHEMA, operator="totals", backend=StateBackend(stated)
        )
        operator.open(context(tmp_path, job))
        assert (operator.freeze_database() is None) == (stated == "heap")
        operator.close()
