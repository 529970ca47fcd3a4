"""Forms of batches: what nulls and types become on the way to pandas and NumPy."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # ships no types
import pyarrow as pa

from headrace.engine.operators.batch_formats import FORMATS, columns_of

BATCH = pa.record_batch({"n": [1, 2], "gap": [1, None], "s": ["a", None], "f": [0.5, None]})


def test_arrow_is_handed_over_as_it_is() -> None:
    assert FORMATS["arrow"](BATCH) is BATCH


def test_a_frame_has_the_columns_and_pandas_nulls() -> None:
    frame = FORMATS["pandas"](BATCH)
    assert list(frame.columns) == BATCH.schema.names
    assert frame["n"].dtype == np.int64
    assert frame["gap"].isna().tolist() == [False, True]
    assert frame["s"].tolist() == ["a", None]


def test_arrays_have_the_columns_and_numpy_nulls() -> None:
    arrays = FORMATS["numpy"](BATCH)
    assert {name: type(array) for name, array in arrays.items()} == dict.fromkeys(
        BATCH.schema.names, np.ndarray
    )
    assert arrays["n"].dtype == np.int64
    assert math.isnan(arrays["gap"][1])
    assert arrays["s"].tolist() == ["a", None]


def test_only_a_frame_has_columns() -> None:
    columns = columns_of(pd.DataFrame({"x": [1]}, index=[7]))
    assert columns is not None
    assert list(columns) == ["x"]
    assert columns_of(pd.Series([1])) is None
    assert columns_of(BATCH) is None
    assert columns_of(OrderedDict(x=1)) is None
