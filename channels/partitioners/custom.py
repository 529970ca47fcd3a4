"""Custom: a user's function names each record's consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .partitioner import Affinity, Partitioner, Redistribution, Router
from .slices import Targets, narrow

#: (batch, number of consumers) to one consumer index per row: a NumPy or Arrow array, or a list.
CustomFunction = Callable[[pa.RecordBatch, int], npt.ArrayLike]


@dataclass(frozen=True, slots=True)
class Custom(Partitioner):
    """Records to the consumers that a user's function names.

    The function must depend on the rows alone: recovery calls it again for records in flight.

    Attributes:
        function: called with a batch and the number of consumers, returns one consumer index per
            row.
        columns: the columns that the function sees; None: all.
    """

    name: ClassVar[str] = "custom"
    affinity: ClassVar = Affinity.RECORD
    redistribution: ClassVar = Redistribution.FILTER
    function: CustomFunction
    columns: tuple[str, ...] | None = None

    def router(self, consumers: int) -> Router:
        def route(batch: pa.RecordBatch) -> Targets:
            visible = batch if self.columns is None else batch.select(list(self.columns))
            answer = np.asarray(self.function(visible, consumers))
            _check(answer, batch.num_rows, consumers)
            return narrow(answer, consumers)

        return route


def _check(answer: npt.NDArray[Any], rows: int, consumers: int) -> None:
    """Raises: ValueError when the function's answer is not one integer per row in range."""
    if answer.shape != (rows,):
        raise ValueError(
            f"the partition function must return one target per row, shape ({rows},), "
            f"not {answer.shape}"
        )
    if answer.dtype.kind not in "iu":
        raise ValueError(
            f"the partition function must return integers without nulls, not {answer.dtype}"
        )
    wrong = np.flatnonzero((answer < 0) | (answer >= consumers))
    if len(wrong):
        raise ValueError(
            f"the partition function must return targets from 0 to {consumers - 1}, "
            f"not {answer[wrong[0]]} (row {wrong[0]})"
        )
