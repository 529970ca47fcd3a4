"""The first record of each key, on both backends, against a set."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.contract.operators import RestoredState, StateKind
from headrace.engine.operators.distinct import DistinctOperator

from .rocks_cases import context, frozen, tables
from .test_aggregate import KEYS, ROWS, SCHEMA, Row, batch_of


def operator_of(folder: Path, keys: list[str], kind: str) -> DistinctOperator:
    operator = DistinctOperator(keys, SCHEMA, operator="distinct")
    operator.open(context(folder, kind))
    return operator


def emitted(operator: DistinctOperator, rows: list[Row]) -> list[Row]:
    found = operator.process(batch_of(rows), 0)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def first_rows(rows: Iterable[Row], keys: list[str], seen: set[object]) -> list[Row]:
    """The rows whose key is not in `seen`; adds the key."""
    kept = []
    for row in rows:
        named = dict(zip(SCHEMA.names, row, strict=True))
        key = tuple(named[key] for key in keys)
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


@settings(max_examples=30)
@given(st.lists(ROWS, max_size=4), KEYS, st.sampled_from(["heap", "rocksdb"]))
def test_a_record_is_emitted_when_its_key_comes_first(
    batches: list[list[Row]], keys: list[str], kind: str
) -> None:
    seen: set[object] = set()
    with tempfile.TemporaryDirectory() as folder:
        operator = operator_of(Path(folder), keys, kind)
        for rows in batches:
            assert emitted(operator, rows) == first_rows(rows, keys, seen)
            operator.commit()
        operator.close()


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_restored_keys_have_come(tmp_path: Path, kind: str) -> None:
    operator = operator_of(tmp_path, ["a"], kind)
    emitted(operator, [(1, "x", 1), (2, "x", 1)])
    operator.commit()
    # Not committed, so not in the checkpoint.
    emitted(operator, [(3, "x", 1)])
    if kind == "heap":
        (state,) = operator.snapshot()
        table = state.table()
    else:
        (table,) = tables(frozen(operator)).values()
    restored = operator_of(tmp_path, ["a"], "heap")
    restored.restore([RestoredState("aggregate", StateKind.KEYED, table)])
    assert emitted(restored, [(1, "y", 2), (3, "y", 2), (2, "y", 2)]) == [(3, "y", 2)]
