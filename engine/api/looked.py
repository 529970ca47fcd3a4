"""A look at a stream: its first records as a table, or printed, and samples while a job runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.units import Duration, duration_ns
from ..operators.inspect import InspectOperator
from .flow import Flow, S

if TYPE_CHECKING:
    from .stream import Stream


def taken(stream: Stream, rows: object, *, where: str) -> pa.Table:
    """Return the first records; see `Stream.take`. Raises: UserError, JobFailed."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
        raise UserError(f"{where} takes a number of records, as in {where}(10), got {rows!r}")
    # Jobs are made of streams, above this room; only the call needs a job.
    from ..session.look import take

    return take(stream, rows)


def shown(table: pa.Table) -> None:
    """Print records as a table."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*table.schema.names)
    for row in table.to_pylist():
        drawn.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(drawn)


def inspected(stream: Flow[S], *, label: str, every: Duration, name: str | None) -> S:
    """Print samples of the records; see `Stream.inspect`. Raises: UserError."""
    every_ns = duration_ns(every, option="inspect: every")
    operator = partial(InspectOperator, label, every_ns)
    return stream.then("inspect", operator, stream.schema, name=name)
