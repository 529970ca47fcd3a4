"""Calls of users' functions: results become Arrow, failures become a `UserCodeError`.

The error names the operator, the failure, the record at hand, and the user's own frames; frames of
headrace are left out, because they tell nothing about the user's mistake.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import is_, itemgetter
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import HeadraceError, UserCodeError

Row = dict[str, Any]
RowFunction = Callable[[Row], Row]
FlatRowFunction = Callable[[Row], Iterable[Row] | None]
RowPredicate = Callable[[Row], bool]

#: Rows turned into Python objects at a time: bounds memory, and how long one call keeps the GIL.
SLICE_ROWS = 1024

_RECORD_CHARACTERS_MAX = 500
#: {type: the types of Python that NumPy turns into it without a doubt}.
_KINDS: dict[pa.DataType, set[type]] = {pa.int64(): {int}, pa.float64(): {float}}
_ENGINE = Path(__file__).parent.parent
_OUR_FOLDERS = tuple(str(_ENGINE / room) for room in ("contract", "operators", "state"))


def slices(batch: pa.RecordBatch, rows_max: int = SLICE_ROWS) -> Iterator[pa.RecordBatch]:
    """Cut a batch into pieces of at most `rows_max` rows, without copying."""
    for first in range(0, batch.num_rows, rows_max):
        yield batch.slice(first, rows_max)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Make a dictionary of each record, as `to_pylist` does, some times faster."""
    return _rows(batch, [cells_of(column) for column in batch.columns])


def _rows(batch: pa.RecordBatch, columns: list[list[Any]]) -> list[Row]:
    names = tuple(batch.schema.names)
    if not names:
        return batch.to_pylist()  # type: ignore[no-any-return]  # pyarrow ships no types
    return _row_maker(names)(columns)


@lru_cache(maxsize=256)
def _row_maker(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Row]]:
    """Write the function that makes the rows of columns with these names.

    A dictionary display with the names in place is four times as fast as `dict(zip(...))`, which
    costs more than most users' functions. `repr` of a string is a literal: no name is code.
    """
    cells = [f"cell_{at}" for at in range(len(names))]
    pairs = ", ".join(f"{name!r}: {cell}" for name, cell in zip(names, cells, strict=True))
    source = f"lambda columns: [{{{pairs}}} for {', '.join(cells)}, in zip(*columns)]"
    maker: Callable[[list[list[Any]]], list[Row]] = eval(source, {})
    return maker


def cells_of(array: pa.Array) -> list[Any]:
    """Make Python objects of a column, as `to_pylist` does, through NumPy where the results are
    equal.
    """
    type_ = array.type
    numbers = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    texts = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    if texts or (numbers and array.null_count == 0):
        cells: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return cells
    plain: list[Any] = array.to_pylist()
    return plain


class GivenRows:
    """A batch as rows, which remembers the cells: a column that a function hands on untouched does
    not become Arrow again.

    Attributes:
        rows: a dictionary for each record.
    """

    __slots__ = ("_batch", "_cells", "rows")

    def __init__(self, batch: pa.RecordBatch) -> None:
        columns = [cells_of(column) for column in batch.columns]
        self.rows = _rows(batch, columns)
        self._batch = batch
        # Whoever holds the list of a nested value can change it in place.
        self._cells = {
            field.name: columns[at]
            for at, field in enumerate(batch.schema)
            if not pa.types.is_nested(field.type)
        }

    def untouched(self, field: pa.Field, cells: Sequence[Any]) -> pa.Array | None:
        """Return the column of the batch, if it is of the field's type and has these very cells.

        Equality would not do: True equals 1, and -0.0 equals 0.0.
        """
        given = self._cells.get(field.name)
        if given is None or len(given) != len(cells) or not all(map(is_, cells, given)):
            return None
        column = self._batch.column(field.name)
        return column if column.type == field.type else None


def shown(value: object) -> str:
    """Return the repr of a value, truncated; a repr that fails is described instead."""
    try:
        text = repr(value)
    except Exception as error:  # a broken __repr__ must not hide the error it is shown in
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= _RECORD_CHARACTERS_MAX else text[:_RECORD_CHARACTERS_MAX] + "..."


def raised(operator: str, error: BaseException, *, record: object = None) -> UserCodeError:
    """Wrap an exception of a user's function.

    `SystemExit`, `asyncio.CancelledError` and the panic of an extension are no `Exception`; like
    any other they fail the job, and must not end a thread of the engine.

    `record` is the function's argument, if worth showing.
    """
    at = "" if record is None else f" for record {shown(record)}"
    frames = user_traceback(error)
    forget_frames(error)
    return UserCodeError(operator, f"{described(error)}{at}", frames)


def forget_frames(error: BaseException) -> None:
    """Drop the traceback of an exception that has been told.

    A program may raise an exception that it made once, and Python adds the frames of each raise:
    equal failures would look different, and all failed calls would stay in memory.
    """
    error.__traceback__ = None


class Blames:
    """Turns what a call of one operator raises into a `UserCodeError` of that operator.

    A `HeadraceError` keeps its sentence; a `UserCodeError` gets the line that built the operator.
    """

    __slots__ = ("_built_at", "_operator")

    def __init__(self, operator: str, built_at: str) -> None:
        self._operator = operator
        self._built_at = built_at

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        match error:
            # A generator that is closed has not failed.
            case None | GeneratorExit():
                return
            case UserCodeError():
                if not error.built_at and error.operator == self._operator:
                    raise error.located(self._built_at) from error.__cause__
            case HeadraceError():
                return
            case _:
                frames = user_traceback(error) or "".join(traceback.format_exception(error))
                forget_frames(error)
                raise UserCodeError(
                    self._operator, described(error), frames, self._built_at
                ) from error


def user_traceback(error: BaseException) -> str:
    """Format the frames outside headrace, as Python prints them; empty without any."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OUR_FOLDERS)
    ]
    if not frames:
        return ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*lines, *traceback.format_exception_only(error)])


def returned_rows(operator: str, returned: object) -> Iterable[Row]:
    """Check what a function of rows returned: an iterable of dicts, or None for none.

    Raises: UserCodeError for a dictionary, a text, bytes, and whatever cannot be iterated.
    """
    if type(returned) is list or type(returned) is GeneratorType:
        return returned
    if returned is None:
        return ()
    if isinstance(returned, Mapping | str | bytes) or not isinstance(returned, Iterable):
        raise UserCodeError(
            operator,
            f"returned {type(returned).__name__} {shown(returned)} where an iterable of dicts is"
            " due",
        )
    return returned


def rows_to_batch(
    operator: str,
    rows: Sequence[Any],
    schema: pa.Schema,
    records: Sequence[Row] | None = None,
    given: GivenRows | None = None,
) -> pa.RecordBatch:
    """Make a batch of the dictionaries that a user's function returned.

    Args:
        records: the input record of each row, for the error; without it the row itself is shown.
        given: the rows that the function was called with, in the same order.

    Raises: UserCodeError when a row is no dictionary, lacks or adds a column, or has a value of
    another type.
    """
    columns = []
    for field in schema:
        name = field.name
        try:
            cells = list(map(itemgetter(name), rows))
            untouched = None if given is None else given.untouched(field, cells)
            columns.append(to_array(cells, field.type) if untouched is None else untouched)
        except Exception as error:
            raise _misfit(operator, rows, schema, records) from error
        if not field.nullable and columns[-1].null_count:
            raise _misfit(operator, rows, schema, records)
    # Rows with all columns and no further cells have no other columns.
    if sum(map(len, rows)) != len(schema) * len(rows):
        raise _misfit(operator, rows, schema, records)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_array(cells: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Make a column of Python values, without loss.

    Raises: TypeError where `pyarrow.array` would silently cut 1.5 to 1 or take True for 1.0, and
    `pyarrow.array`'s own errors.
    """
    kinds = set(map(type, cells))
    if kinds == _KINDS.get(type_):
        # A third faster than Arrow, and the same for these.
        return pa.array(np.fromiter(cells, type_.to_pandas_dtype(), len(cells)))
    refused: tuple[type, ...] = ()
    if pa.types.is_integer(type_):
        refused = (float, np.floating, Decimal)
    elif pa.types.is_floating(type_):
        refused = (bool, np.bool_)
    if any(issubclass(found, refused) for found in kinds):
        raise TypeError(f"not every value is a {type_}")
    return pa.array(cells, type_)


def check_schema(operator: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Check the names, order and types of columns that a user's function returned; nullability and
    metadata may differ.

    Raises: UserCodeError with the difference.
    """
    if found.names != wanted.names:
        missing = [name for name in wanted.names if name not in found.names]
        added = [name for name in found.names if name not in wanted.names]
        what = [f"lacks {_names(missing)}"] * bool(missing) + [f"adds {_names(added)}"] * bool(
            added
        )
        problem = " and ".join(what) or f"has the order {_names(found.names)}"
        raise UserCodeError(
            operator,
            f"the returned batch {problem}; the declared columns are {_names(wanted.names)}",
        )
    for field in wanted:
        type_ = found.field(field.name).type
        if type_ != field.type:
            raise UserCodeError(
                operator,
                f"column {field.name!r} of the returned batch is {type_}, declared is"
                f" {field.type}; cast it in the "
                "function or declare what it returns",
            )


def _misfit(
    operator: str, rows: Sequence[Any], schema: pa.Schema, records: Sequence[Row] | None
) -> UserCodeError:
    """Find the first row that does not fit; slow, and only for the error."""
    for index, row in enumerate(rows):
        problem = _problem(row, schema)
        if problem:
            at = f"for record {shown(records[index])}" if records else f"in {shown(row)}"
            return UserCodeError(operator, f"{problem} {at}")
    return UserCodeError(operator, f"the returned rows do not fit the declared schema ({schema})")


def _problem(row: object, schema: pa.Schema) -> str:
    if not isinstance(row, Mapping):
        return f"returned {type(row).__name__} {shown(row)} where a dict per record is due"
    missing = [name for name in schema.names if name not in row]
    if missing:
        return f"returned no {_names(missing)} (return None for a null)"
    added = [name for name in row if name not in schema.names]
    if added:
        return f"returned {_names(added)}, not among the declared columns {_names(schema.names)}"
    for field in schema:
        cell = row[field.name]
        if cell is None and not field.nullable:
            return f"returned None in column {field.name!r}, declared as not nullable"
        try:
            to_array([cell], field.type)
        except Exception:  # whatever Arrow or the value's own methods raise, it does not fit
            return f"returned {shown(cell)} in column {field.name!r}, declared as {field.type},"
    return ""


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or nothing if its `__str__` raises."""
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the error
        return ""


def described(error: BaseException) -> str:
    """Return the type and message of an exception."""
    text = message_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _names(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names))
