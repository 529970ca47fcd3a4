"""First and last values against a sorted list."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.operators.ordered import OrderedAccumulator

#: Slot, place and value.
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 5), st.none() | st.text(max_size=2)),
    max_size=30,
)
Row = tuple[int, int | None, str | None]


def of_places(rows: list[Row]) -> pa.Array:
    columns = [
        pa.array([row[2] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.int64()),
    ]
    return pa.StructArray.from_arrays(columns, names=["v", "t"])


def made(*, last: bool, by: pa.DataType | None = None) -> OrderedAccumulator:
    return OrderedAccumulator("r", pa.string(), by, last=last)


def slots_of(rows: list[Row]) -> Any:
    return np.array([row[0] for row in rows], np.int64)


def results(accumulated: OrderedAccumulator, count: int = 4) -> list[object]:
    state = [column.working[:count] for column in accumulated.columns]
    found: list[object] = accumulated.result(state).to_pylist()
    return found


def expected(rows: list[Row], *, last: bool) -> list[object]:
    """For each slot the value of the smallest or largest place, of equal ones the outermost."""
    found: list[object] = []
    for slot in range(4):
        own = [(t, n, v) for n, (s, t, v) in enumerate(rows) if s == slot and None not in (t, v)]
        own.sort(key=lambda row: row[:2])
        found.append(own[-1 if last else 0][2] if own else None)
    return found


@given(st.lists(ROWS, max_size=3), st.booleans())
def test_places_decide_whatever_the_batches(batches: list[list[Row]], last: bool) -> None:
    accumulated = made(last=last, by=pa.int64())
    for rows in batches:
        accumulated.add(slots_of(rows), of_places(rows))
    assert results(accumulated) == expected([r for rows in batches for r in rows], last=last)


@given(ROWS, st.booleans())
def test_without_places_the_order_of_arrival_decides(rows: list[Row], last: bool) -> None:
    accumulated = made(last=last)
    values = pa.array([row[2] for row in rows], pa.string())
    for at in range(0, len(rows), 7):
        accumulated.add(slots_of(rows)[at : at + 7], values[at : at + 7])
    arrived: list[Row] = [(slot, n, value) for n, (slot, _, value) in enumerate(rows)]
    assert results(accumulated) == expected(arrived, last=last)


@given(ROWS, ROWS, st.booleans())
def test_merged_slots_are_one_and_what_is_stored_goes_on(
    first: list[Row], second: list[Row], last: bool
) -> None:
    kept = made(last=last, by=pa.int64())
    kept.add(slots_of(first), of_places(first))
    again = made(last=last, by=pa.int64())
    again.load(np.arange(4), kept.store([column.working[:4] for column in kept.columns]))
    again.add(slots_of(second), of_places(second))
    # All four into the first; rows of higher slots count as later among equal places.
    again.merge(np.zeros(3, np.int64), [column.working[1:4] for column in again.columns])
    best = [(t, v) for _, t, v in first + second if None not in (t, v)]
    if best:
        place = (max if last else min)(t for t, _ in best if t is not None)
        assert results(again)[0] in {v for t, v in best if t == place}
    else:
        assert results(again)[0] is None


def test_a_place_that_is_no_number_has_no_order() -> None:
    accumulated = OrderedAccumulator("r", pa.int64(), pa.float64(), last=True)
    places = pa.array([1.0, math.nan, 0.5])
    column = pa.StructArray.from_arrays([pa.array([1, 2, 3]), places], names=["v", "t"])
    accumulated.add(np.zeros(3, np.int64), column)
    assert results(accumulated, 1) == [1]


def test_aggregates_in_the_order_of_arrival_cannot_be_merged() -> None:
    accumulated = made(last=True)
    with pytest.raises(AssertionError):
        accumulated.merge(np.zeros(1, np.int64), [c.working[:1] for c in accumulated.columns])
