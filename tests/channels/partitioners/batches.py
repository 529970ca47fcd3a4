"""Batches whose records number themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema([("key", pa.int64()), ("sequence", pa.int64()), ("text", pa.string())])


def batch_of(first: int, rows: int, keys: int = 10) -> pa.RecordBatch:
    sequences = np.arange(first, first + rows)
    columns = [sequences * 7 % keys, sequences, [f"t{value % 13}" for value in sequences]]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def by_sequence(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
    targets: npt.NDArray[np.int64] = batch.column("sequence").to_numpy() % consumers
    return targets


def value_addresses(batch: pa.RecordBatch) -> set[int]:
    return {batch.column(0).buffers()[1].address, batch.column(2).buffers()[2].address}
