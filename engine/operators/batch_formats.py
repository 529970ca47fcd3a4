"""Forms in which a function takes its batches: Arrow, pandas, NumPy.

A null reaches pandas and NumPy as their libraries have it: NaN in a column of numbers, NaT in a
column of times, None elsewhere. On the way back the declared schema decides the types. In a
DataFrame NaN, NaT and None are nulls again; an array has no nulls but None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import pyarrow as pa

BatchFormat = Literal["arrow", "pandas", "numpy"]


def _numpy(batch: pa.RecordBatch) -> dict[str, Any]:
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column.to_numpy(zero_copy_only=False) for name, column in columns}


#: {format: makes the function's argument}.
FORMATS: Final[Mapping[BatchFormat, Callable[[pa.RecordBatch], Any]]] = {
    "arrow": lambda batch: batch,
    "pandas": lambda batch: batch.to_pandas(),
    "numpy": _numpy,
}


def columns_of(result: object) -> Mapping[str, Any] | None:
    """Return the columns of a DataFrame, without its index; None: `result` is no DataFrame."""
    # Named and not imported: pandas takes a second, and most jobs do without.
    if type(result).__module__.partition(".")[0] != "pandas" or not hasattr(result, "columns"):
        return None
    frame: Any = result
    return {name: frame[name] for name in frame.columns}
