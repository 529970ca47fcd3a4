"""Record batches cut into slices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.slices import narrow, split_by_targets


@given(data=st.data(), consumers=st.sampled_from([1, 2, 3, 256, 257]))
def test_rows_are_grouped_by_target_and_stay_in_order(data: st.DataObject, consumers: int) -> None:
    targets = data.draw(st.lists(st.integers(0, consumers - 1), max_size=40))
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(targets)), pa.int64())], names=["n"])
    slices = split_by_targets(batch, narrow(np.array(targets, np.int64), consumers), consumers)
    assert [(target, rows["n"].to_pylist()) for target, rows in slices] == [
        (target, [n for n, mine in enumerate(targets) if mine == target])
        for target in sorted(set(targets))
    ]


def test_more_consumers_than_sixteen_bits_hold_are_refused() -> None:
    with pytest.raises(AssertionError, match="65537 consumers do not fit"):
        narrow(np.zeros(1, np.int64), 65_537)
