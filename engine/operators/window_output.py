"""The schema of emitted windows, and the names that keys and aggregations cannot have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..contract.errors import UserError
from .aggregations import Aggregation, aggregate_schema
from .window_store import END, FIRED, START


def window_schema(
    keys: Sequence[str],
    event_time: str,
    aggregations: Mapping[str, Aggregation],
    schema_in: pa.Schema,
) -> pa.Schema:
    """Return the schema of a windowed aggregate: keys, window_start, window_end, aggregations.

    Raises: UserError as `aggregate_schema`, and when a key or an aggregation has the name of a
    column of windows.
    """
    for name in [*keys, *aggregations]:
        if name in (START, END, FIRED):
            what = "key column" if name in keys else "aggregation"
            raise UserError(f"window: {name!r} is a column of the result; rename the {what}")
    plain = list(aggregate_schema(keys, aggregations, schema_in))
    type_ = schema_in.field(event_time).type
    bounds = [pa.field(START, type_, nullable=False), pa.field(END, type_, nullable=False)]
    return pa.schema([*plain[: len(keys)], *bounds, *plain[len(keys) :]])
