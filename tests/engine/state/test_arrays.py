from __future__ import annotations

import math
from datetime import date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.state.arrays import (
    from_values,
    from_words,
    is_word_type,
    validity,
    values,
    words,
)

COLUMNS = [
    pa.array([1, None, -128], pa.int8()),
    pa.array([0, None, (1 << 64) - 1], pa.uint64()),
    pa.array([1.5, None, -2.0], pa.float32()),
    pa.array([True, None, False]),
    pa.array([date(2020, 1, 1), None, date(1960, 1, 1)], pa.date32()),
    pa.array([datetime(2020, 1, 1), None, datetime(1960, 1, 1)], pa.timestamp("us")),
    pa.array([timedelta(seconds=1), None, timedelta(days=-1)], pa.duration("ms")),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_a_column_survives_words_and_values(column: pa.Array) -> None:
    assert is_word_type(column.type)
    valid = validity(column)
    assert valid is not None and valid.tolist() == [True, False, True]
    assert from_words(words(column), column.type, valid).equals(column)
    assert from_values(values(column), column.type, valid).equals(column)
    sliced = column.slice(2)
    assert from_words(words(sliced), column.type, validity(sliced)).equals(sliced)


def test_equal_floats_have_one_word() -> None:
    quiet, other = math.nan, np.uint64(0xFFF8000000000001).view(np.float64)
    found = words(pa.array(np.array([0.0, -0.0, quiet, other])))
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_strings_have_no_word() -> None:
    assert not is_word_type(pa.string())
