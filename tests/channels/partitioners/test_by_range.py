"""By range: records to the consumer of the range that holds a column's value."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from bisect import bisect_right
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.by_range import ByRange

UTC = dt.UTC


def column(values: list[Any], type_: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, type_)], names=["x"])


def targets(type_: pa.DataType, boundaries: list[Any], values: list[Any], consumers: int) -> Any:
    batch = column(values, type_)
    return ByRange.over(batch.schema, "x", boundaries).router(consumers)(batch).tolist()


@given(
    boundaries=st.lists(st.integers(-50, 50), min_size=1, unique=True).map(sorted),
    values=st.lists(st.integers(-60, 60) | st.none()),
    consumers=st.integers(1, 300),
)
def test_each_value_goes_to_the_consumer_of_its_range(
    boundaries: list[int], values: list[int | None], consumers: int
) -> None:
    ranges = len(boundaries) + 1
    expected = [
        (len(boundaries) if x is None else bisect_right(boundaries, x)) * consumers // ranges
        for x in values
    ]
    assert targets(pa.int64(), boundaries, values, consumers) == expected


@given(
    boundaries=st.lists(st.text(max_size=4), min_size=1, unique=True).map(sorted),
    values=st.lists(st.text(max_size=4)),
)
def test_strings_are_in_the_order_of_their_code_points(
    boundaries: list[str], values: list[str]
) -> None:
    expected = [bisect_right(boundaries, x) for x in values]
    assert targets(pa.string(), boundaries, values, len(boundaries) + 1) == expected


@given(
    boundaries=st.lists(st.floats(allow_nan=False), min_size=1, unique=True).map(sorted),
    values=st.lists(st.floats()),
)
def test_floats_are_compared_exactly_and_nan_belongs_to_the_last_range(
    boundaries: list[float], values: list[float]
) -> None:
    last = len(boundaries)
    expected = [last if math.isnan(x) else bisect_right(boundaries, x) for x in values]
    assert targets(pa.float64(), boundaries, values, last + 1) == expected


@pytest.mark.parametrize(
    ("type_", "below", "boundary"),
    [
        (pa.int8(), 1, 2),
        (pa.uint64(), 2**63, 2**64 - 1),
        (pa.float32(), 0.25, 0.5),
        (pa.decimal128(10, 2), decimal.Decimal("1.49"), decimal.Decimal("1.50")),
        (pa.date32(), dt.date(2023, 12, 31), dt.date(2024, 1, 1)),
        (pa.date64(), dt.date(2023, 12, 31), dt.date(2024, 1, 1)),
        (pa.timestamp("s"), dt.datetime(2024, 1, 1, 9, 59), dt.datetime(2024, 1, 1, 10)),
        (pa.timestamp("ns"), dt.datetime(1969, 1, 1), dt.datetime(1970, 1, 1)),
        (
            pa.timestamp("us", "Europe/Berlin"),
            dt.datetime(2024, 3, 31, 0, 59, 59, 999_999, UTC),
            dt.datetime(2024, 3, 31, 1, tzinfo=UTC),
        ),
        (pa.large_string(), "a", "b"),
    ],
    ids=str,
)
def test_a_range_begins_at_its_boundary_in_every_type(
    type_: pa.DataType, below: object, boundary: object
) -> None:
    assert targets(type_, [boundary], [below, boundary, None], 2) == [0, 1, 1]


def test_consumers_hold_contiguous_shares_of_the_ranges() -> None:
    boundaries = list(range(1, 8))
    assert targets(pa.int64(), boundaries, list(range(8)), 3) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert targets(pa.int64(), [4], [0, 4], 4) == [0, 2]


def test_boundaries_may_be_an_array_and_are_kept_as_the_column_writes_them() -> None:
    schema = pa.schema([("x", pa.float64())])
    assert ByRange.over(schema, "x", [1, 2]) == ByRange.over(schema, "x", pa.array([1.0, 2.0]))
    assert ByRange.over(schema, "x", [0.1, 2]).boundaries == ("0.1", "2")


@pytest.mark.parametrize(
    ("type_", "boundaries", "error", "sentence"),
    [
        (pa.int64(), [], ValueError, "boundaries are empty; state at least one"),
        (pa.int64(), [1, 3, 2], ValueError, "boundaries must rise: 2 comes after 3"),
        (pa.int64(), [1, 1], ValueError, "boundaries must rise: 1 comes after 1"),
        (pa.int64(), [1, None], ValueError, "boundaries hold null or NaN"),
        (pa.float64(), [math.nan], ValueError, "boundaries hold null or NaN"),
        (pa.int64(), [1.5], ValueError, "boundaries are not values of column 'x', int64"),
        (pa.int8(), [300], ValueError, "boundaries are not values of column 'x', int8"),
        (pa.int64(), ["a"], TypeError, "boundaries are string, and column 'x' is int64"),
        (pa.string(), [1], TypeError, "boundaries are int64, and column 'x' is string"),
        (pa.timestamp("us"), [5], TypeError, "boundaries are int64, and column 'x' is timestamp"),
        (
            pa.timestamp("us"),
            [dt.datetime(2024, 1, 1, tzinfo=UTC)],
            TypeError,
            "boundaries are timestamp.*tz=UTC.*, and column 'x' is timestamp",
        ),
        (pa.date32(), [dt.datetime(2024, 1, 1, 5)], TypeError, "boundaries are timestamp"),
        (pa.int64(), [1, "a"], TypeError, "are not values of one type"),
        (pa.int64(), 5, TypeError, "boundaries 5 are not values of one type"),
        (pa.string(), "ab", TypeError, "boundaries are a sequence of values, not 'ab'"),
        (pa.list_(pa.int64()), [[1]], TypeError, "ranges are of numbers, dates, timestamps"),
        (pa.float16(), [1.0], TypeError, "ranges are of numbers, dates, timestamps or strings"),
    ],
)
def test_boundaries_that_make_no_ranges_are_refused(
    type_: pa.DataType, boundaries: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        ByRange.over(pa.schema([("x", type_)]), "x", boundaries)
