from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.state.types import StateTypeError, check, copier


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        (pa.int64(), 3, 3),
        (pa.int64(), np.int32(3), 3),
        (pa.uint8(), 255, 255),
        (pa.float64(), 1, 1.0),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.string(), "x", "x"),
        (pa.bool_(), True, True),
        (pa.binary(), b"x", b"x"),
        (pa.list_(pa.int64()), [1, 2], [1, 2]),
        (pa.int64(), None, None),
    ],
)
def test_a_value_is_kept_as_a_checkpoint_would_give_it_back(
    type_: pa.DataType, value: Any, kept: Any
) -> None:
    found = check(type_, "state 'x'")(value)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), "3"),
        (pa.int64(), True),
        (pa.int64(), 1.0),
        (pa.int64(), 1 << 63),
        (pa.uint8(), -1),
        (pa.int8(), 128),
        (pa.float64(), "1"),
        (pa.string(), b"x"),
        (pa.bool_(), 1),
        (pa.list_(pa.int64()), ["a"]),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_name_of_the_state(
    type_: pa.DataType, value: Any
) -> None:
    with pytest.raises(StateTypeError, match="state 'x' holds"):
        check(type_, "state 'x'")(value)


def test_nested_values_are_copied_when_handed_out() -> None:
    value = [[1]]
    copied = copier(pa.list_(pa.list_(pa.int64())))(value)
    assert copied == value
    assert copied is not value
    assert copied[0] is not value[0]
