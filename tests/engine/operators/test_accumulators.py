from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.accumulators import Accumulator, accumulator

INT64_MAX = (1 << 63) - 1


def fed(aggregation: agg.Aggregation, column: pa.Array, slots: list[int]) -> Accumulator:
    made = accumulator("r", aggregation, pa.schema([("v", column.type)]))
    made.add(np.array(slots), column)
    return made


def results(made: Accumulator, slots: int) -> list[object]:
    state = [column.working[:slots] for column in made.columns]
    found: list[object] = made.result(state).to_pylist()
    return found


def test_nulls_are_skipped_as_in_sql() -> None:
    column = pa.array([3, None, None, 5], pa.int16())
    slots = [0, 0, 1, 0]
    assert results(fed(agg.sum("v"), column, slots), 2) == [8, None]
    assert results(fed(agg.count("v"), column, slots), 2) == [2, 0]
    assert results(fed(agg.min("v"), column, slots), 2) == [3, None]
    assert results(fed(agg.max("v"), column, slots), 2) == [5, None]
    assert results(fed(agg.mean("v"), column, slots), 2) == [4.0, None]


def test_extremes_prefer_any_number_to_nan() -> None:
    column = pa.array([math.nan, 1.0, math.nan], pa.float32())
    (number, nan) = results(fed(agg.min("v"), column, [0, 0, 1]), 2)
    assert number == 1.0
    assert isinstance(nan, float) and math.isnan(nan)


def test_extremes_reach_the_ends_of_every_integer_type() -> None:
    for type_ in (pa.int8(), pa.uint8(), pa.int64(), pa.uint64()):
        limits = np.iinfo(type_.to_pandas_dtype())
        column = pa.array([int(limits.min), int(limits.max)], type_)
        assert results(fed(agg.min("v"), column, [0, 1]), 2) == [limits.min, limits.max]
        assert results(fed(agg.max("v"), column, [0, 0]), 1) == [limits.max]


def test_a_sum_that_leaves_int64_raises_and_adds_nothing() -> None:
    made = fed(agg.sum("v"), pa.array([INT64_MAX]), [0])
    with pytest.raises(OverflowError, match=str(INT64_MAX + 1)):
        made.add(np.array([0]), pa.array([1]))
    assert results(made, 1) == [INT64_MAX]
    with pytest.raises(OverflowError):
        fed(agg.sum("v"), pa.array([1 << 63], pa.uint64()), [0])


def test_a_sum_close_to_the_range_stays_exact() -> None:
    made = fed(agg.sum("v"), pa.array([INT64_MAX - 10]), [0])
    for _ in range(5):
        made.add(np.array([0, 0, 1]), pa.array([3, -1, 1 << 60]))
    assert results(made, 2) == [INT64_MAX, 5 << 60]
    made.add(np.array([0, 0]), pa.array([INT64_MAX, -INT64_MAX]))
    assert results(made, 1) == [INT64_MAX]


def test_the_mean_of_uint64_has_the_whole_range() -> None:
    column = pa.array([2**64 - 1, 2**64 - 1, None, 2**63], pa.uint64())
    assert results(fed(agg.mean("v"), column, [0, 0, 1, 1]), 3) == [2.0**64, 2.0**63, None]


def test_decimals_are_summed_exactly_up_to_their_last_digit() -> None:
    type_ = pa.decimal128(38, 2)
    huge = Decimal("9" * 36 + ".98")
    made = fed(agg.sum("v"), pa.array([huge, None, Decimal("0.01"), None], type_), [0, 0, 0, 1])
    assert results(made, 2) == [Decimal("9" * 36 + ".99"), None]
    with pytest.raises(OverflowError, match="outside the range of decimal128"):
        made.add(np.array([0]), pa.array([Decimal("0.01")], type_))


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_has_extremes_by_its_bytes(type_: pa.DataType) -> None:
    column = pa.array(["b", "\U0001f600", None, "\uffee", ""]).cast(type_)
    least = results(fed(agg.min("v"), column, [0, 0, 1, 0, 2]), 3)
    most = results(fed(agg.max("v"), column, [0, 0, 1, 0, 2]), 3)
    assert least == [column[0].as_py(), None, column[4].as_py()]
    assert most == [column[1].as_py(), None, column[4].as_py()]


@pytest.mark.parametrize(
    "type_", [pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(30, 1), pa.decimal256(40, 1)]
)
def test_what_is_stored_can_be_loaded_and_continued(type_: pa.DataType) -> None:
    kinds = [agg.sum("v"), agg.count("v"), agg.min("v"), agg.max("v"), agg.mean("v")]
    for aggregation in kinds[:4] if pa.types.is_decimal(type_) else kinds:
        first = fed(aggregation, pa.array([4, None, 6]).cast(type_), [0, 1, 0])
        stored = first.store([column.working[:2] for column in first.columns])
        assert [column.type for column in stored] == [field.type for field in first.fields]
        again = accumulator("r", aggregation, pa.schema([("v", type_)]))
        again.load(np.array([0, 1]), stored)
        for made in (first, again):
            made.add(np.array([0, 1]), pa.array([1, 7]).cast(type_))
            made.merge(np.array([1, 1]), [column.working[:2] for column in made.columns])
        assert results(again, 2) == results(first, 2)
