from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.accumulators import Accumulator, accumulator

NAN = math.nan


def fed(aggregation: agg.Aggregation, column: pa.Array, slots: list[int]) -> Accumulator:
    made = accumulator("r", aggregation, pa.schema([("v", column.type)]))
    made.add(np.array(slots), column)
    return made


def results(made: Accumulator, slots: int) -> list[Any]:
    found: list[Any] = made.result([c.working[:slots] for c in made.columns]).to_pylist()
    return found


def test_values_are_gathered_without_nulls() -> None:
    column = pa.array(["b", None, "a", "b"])
    slots = [0, 1, 0, 0]
    assert results(fed(agg.collect_list("v"), column, slots), 2) == [["b", "a", "b"], []]
    assert results(fed(agg.count_distinct("v"), column, slots), 2) == [2, 0]


def test_lists_and_structs_are_gathered_too() -> None:
    column = pa.array([{"x": 1}, {"x": 2}])
    assert results(fed(agg.collect_list("v"), column, [0, 0]), 1) == [[{"x": 1}, {"x": 2}]]


def test_every_nan_is_the_same_value_also_after_a_restore() -> None:
    made = fed(agg.count_distinct("v"), pa.array([NAN, float("nan"), 1.0]), [0, 0, 0])
    assert results(made, 1) == [2]
    again = accumulator("r", agg.count_distinct("v"), pa.schema([("v", pa.float64())]))
    again.load(np.array([0]), made.store([c.working[:1] for c in made.columns]))
    again.add(np.array([0, 0]), pa.array([float("nan"), 2.0]))
    assert results(again, 1) == [3]


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 0.99, 1])
def test_quantiles_are_those_of_all_numbers(share: float) -> None:
    numbers = list(range(100, 0, -1))
    made = fed(agg.quantile("v", share), pa.array(numbers), [0] * 100)
    assert results(made, 2) == [pytest.approx(np.quantile(numbers, share)), None]


@pytest.mark.parametrize("make", [agg.count_distinct, agg.collect_list])
def test_committed_state_stays_as_it_is_while_more_comes(
    make: Callable[[str], agg.Aggregation],
) -> None:
    made = fed(make("v"), pa.array([1]), [0])
    (column,) = made.columns
    column.stage(np.array([0]))
    column.commit()
    before = made.store([column.freeze(1)])[0].to_pylist()
    made.add(np.array([0]), pa.array([2]))
    assert made.store([column.freeze(1)])[0].to_pylist() == before == [[1]]


def test_merged_slots_hold_the_values_of_both() -> None:
    made = fed(agg.count_distinct("v"), pa.array([1, 2, 2, 3]), [0, 0, 1, 1])
    made.merge(np.array([0]), [c.working[1:2] for c in made.columns])
    assert results(made, 1) == [3]
