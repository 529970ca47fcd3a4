"""Columns in their plain type.

Views (`string_view`, `binary_view`, which Polars and DuckDB hand out) and run-end-encoded columns
become plain where records enter a stream: Arrow has no kernel that picks rows of either, and a
slice of a view drags along every byte of the original array.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.channels.schemas import plain_type


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema whose columns have their plain type; `schema` itself if all have."""
    plain = pa.schema([f.with_type(plain_type(f.type)) for f in schema], metadata=schema.metadata)
    return schema if plain.equals(schema) else plain


def plain_array(array: pa.Array) -> pa.Array:
    """Return the values in their plain type; `array` itself if it has that."""
    if pa.types.is_run_end_encoded(array.type):
        # Arrow's own decoder knows few types of values.
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return plain_array(array.values).take(pa.array(runs))
    plain = plain_type(array.type)
    return array if plain.equals(array.type) else array.cast(plain)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records with columns in their plain type; `batch` itself if all have that."""
    schema = plain_schema(batch.schema)
    if schema is batch.schema:
        return batch
    return pa.RecordBatch.from_arrays([plain_array(a) for a in batch.columns], schema=schema)
