"""Arguments of `map_batches`: full batches, formats, shared instances."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal, get_args

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.execution import BatchRule
from ..contract.units import Duration, duration_ns
from ..operators.batch import BatchFunction
from ..operators.batch_formats import FORMATS
from ..operators.instances import SharedInstance
from ..plan.validate import check_parallelism

#: Subtasks that call one instance of a class: one, or all of a worker.
Share = Literal["subtask", "worker"]

_ROWS_MAX = 2**31 - 1


def batch_rule(
    schema: pa.Schema, batch_size: int | None, linger: Duration | None
) -> BatchRule | None:
    """Return the batches that `map_batches` asks for; None: records are handed out as they come.

    Raises: UserError when `batch_size` is no number of rows that memory can hold, or is missing
    beside `linger`.
    """
    if batch_size is None:
        if linger is not None:
            raise UserError(
                f"map_batches: linger={linger!r} without batch_size waits for nothing; state the "
                "rows of a full batch, such as batch_size=4096"
            )
        return None
    check_parallelism(batch_size, where="map_batches: batch_size", limit=_ROWS_MAX)
    row_bytes = sum(_least_bits(field.type) for field in schema) / 8
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if batch_size * row_bytes > memory_bytes:
        raise UserError(
            f"map_batches: batch_size={batch_size} rows take {batch_size * row_bytes / 2**30:.0f} "
            f"GiB or more, and this machine has {memory_bytes / 2**30:.0f} GiB; state a smaller one"
        )
    linger_ns = 0 if linger is None else duration_ns(linger, option="map_batches: linger")
    return BatchRule(batch_size, linger_ns)


def check_format(batch_format: object) -> None:
    """Refuse an unknown format, and one whose library is not installed."""
    if batch_format not in FORMATS:
        raise UserError(
            f"map_batches: batch_format={batch_format!r} is none of {', '.join(map(repr, FORMATS))}"
        )
    if batch_format == "pandas" and find_spec("pandas") is None:
        raise UserError(
            "map_batches: batch_format='pandas' needs pandas; pip install 'headrace[pandas]'"
        )


def shared(function: BatchFunction | type, share: object) -> BatchFunction | type | SharedInstance:
    """Return the function, or the class as one instance a worker if `share` says so.

    Raises: UserError when `share` is unknown, or a function is to be shared.
    """
    if share not in get_args(Share):
        raise UserError(f"map_batches: share={share!r} is neither 'subtask' nor 'worker'")
    if share == "subtask":
        return function
    if not isinstance(function, type):
        raise UserError(
            "map_batches: share='worker' shares the instance of a class, and got a function; "
            "leave share= out, or pass a class"
        )
    return SharedInstance(function)


def _least_bits(type_: pa.DataType) -> int:
    """Bits that a value takes at least."""
    try:
        return int(type_.bit_width)
    except ValueError:  # of a type without fixed width
        return 8
