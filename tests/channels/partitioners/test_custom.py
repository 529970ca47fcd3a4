"""Custom: a user's function names each record's consumer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from headrace.channels.partitioners.custom import Custom

from .batches import batch_of


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0, 1], r"one target per row, shape \(3,\), not \(2,\)"),
        (1, r"one target per row, shape \(3,\), not \(\)"),
        ([[0], [1], [1]], r"one target per row"),
        ([0.0, 1.0, 1.0], "integers without nulls, not float64"),
        ([True, False, True], "integers without nulls, not bool"),
        (pa.array([0, None, 1]), "integers without nulls, not float64"),
        (["a", "b", "c"], "integers without nulls"),
        ([0, 2, 1], r"from 0 to 1, not 2 \(row 1\)"),
        ([0, 1, -1], r"from 0 to 1, not -1 \(row 2\)"),
        (np.array([0, 256, 1]), r"from 0 to 1, not 256 \(row 1\)"),
    ],
)
def test_custom_refuses_a_wrong_answer(answer: npt.ArrayLike, message: str) -> None:
    splitter = Custom(lambda batch, consumers: answer).open(0, 1, 2, 0)
    with pytest.raises(ValueError, match=message):
        splitter.split(batch_of(0, 3))


@pytest.mark.parametrize("answer", [[1, 0, 1], pa.array([1, 0, 1]), np.array([1, 0, 1], np.uint64)])
def test_custom_takes_lists_and_arrays(answer: npt.ArrayLike) -> None:
    slices = Custom(lambda batch, consumers: answer).open(0, 1, 300, 0).split(batch_of(0, 3))
    received = {target: rows["sequence"].to_pylist() for target, rows in slices}
    assert received == {0: [1], 1: [0, 2]}


def test_custom_shows_the_function_its_columns_only() -> None:
    seen: list[Sequence[str]] = []

    def function(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
        seen.append(batch.schema.names)
        return np.zeros(batch.num_rows, np.int64)

    Custom(function, ("text",)).open(0, 1, 2, 0).split(batch_of(0, 3))
    Custom(function).open(0, 1, 2, 0).split(batch_of(0, 3))
    assert seen == [["text"], ["key", "sequence", "text"]]
