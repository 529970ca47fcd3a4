"""`headrace checkpoints show --state|--edge`: the data in a checkpoint, a row a line, without
Spark.

With `--json` a row is an object whose values are JSON's own where JSON has them; otherwise bytes
are base64, and times, durations, decimals and non-finite numbers are text. A map is a list of [key,
value] pairs: JSON's keys are text only.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from datetime import date, time
from typing import Any

import pyarrow as pa

from ..contract.errors import UserError
from ..inspection.contents import View, in_flight_on, state_of
from ..inspection.directory import open_checkpoint
from .reporter import print_object
from .streams import say
from .tables import print_table

#: Rows turned into Python objects at a time.
_ROWS = 1_000


def show_contents(
    directory: str,
    job: str | None,
    number: int | None,
    operator: str | None,
    state: str | None,
    edge: str | None,
    *,
    limit: int,
    as_json: bool,
) -> int:
    """Print up to `limit` rows; says on standard error when there are more.

    Raises: UserError, StorageUnreachable.
    """
    if (operator is None) == (edge is None) or (state is not None and operator is None):
        raise UserError("show takes --state OPERATOR, with --state-name if need be, or --edge KEY")
    opened = open_checkpoint(directory, job, number)
    if operator is not None:
        view = state_of(opened, operator, state)
    else:
        assert edge is not None, "checked above"
        view = in_flight_on(opened, edge)
    batches, more = _first(view, limit)
    if as_json:
        for row in _rows(batches):
            print_object(row)
    else:
        shown = ([_text(value) for value in row.values()] for row in _rows(batches))
        print_table(view.schema.names, shown)
    if more:
        say(f"more than {limit} rows; --limit N shows more of them")
    return 0


def _first(view: View, limit: int) -> tuple[list[pa.RecordBatch], bool]:
    """Return the first `limit` rows, and whether there are more; read no further piece than that
    takes.
    """
    batches: list[pa.RecordBatch] = []
    for piece in view.pieces:
        for batch in view.read(piece):
            if batch.num_rows > limit:
                return [*batches, batch.slice(0, limit)], True
            batches.append(batch)
            limit -= batch.num_rows
    return batches, False


def _rows(batches: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS):
            for row in batch.slice(first, _ROWS).to_pylist():
                yield {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
