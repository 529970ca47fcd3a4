"""Operators around a Python function per record.

Convenient, and a hundred times slower than operators on batches. Records are dictionaries, made a
slice at a time. Results are packed into Arrow a slice at a time as well, so that an error about a
wrong value appears close to the record that caused the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from ..contract.errors import UserCodeError
from ..contract.user_code import (
    Row,
    raised,
    returned_rows,
    rows_of,
    rows_to_batch,
    shown,
    slices,
)
from .stateless import StatelessOperator


class MapOperator(StatelessOperator):
    """Calls `function` with each record; the function returns the record to emit."""

    def __init__(
        self, function: Callable[[Row], Row], schema_out: pa.Schema, *, operator: str
    ) -> None:
        self._function = function
        self._schema = schema_out
        self._operator = operator

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit one record per record.

        Raises: UserCodeError when the function raises or returns a record that does not fit the
        schema.
        """
        function = self._function
        for piece in slices(batch):
            records = rows_of(piece)
            results: list[Row] = []
            append = results.append
            try:
                for record in records:
                    append(function(record))
            except Exception as error:
                record = piece.slice(len(results), 1).to_pylist()[0]
                raise raised(self._operator, error, record=record) from error
            yield rows_to_batch(self._operator, results, self._schema, records)


class FlatMapOperator(StatelessOperator):
    """Calls `function` with each record; the function returns the records to emit.

    The function returns an iterable (a generator will do), or None.
    """

    def __init__(
        self,
        function: Callable[[Row], Iterable[Row] | None],
        schema_out: pa.Schema,
        *,
        operator: str,
    ) -> None:
        self._function = function
        self._schema = schema_out
        self._operator = operator

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the function's records, in order.

        Raises: UserCodeError as `MapOperator.process`.
        """
        function, operator = self._function, self._operator
        for piece in slices(batch):
            rows: list[Row] = []
            for index, record in enumerate(rows_of(piece)):
                try:
                    rows.extend(returned_rows(operator, function(record)))
                except UserCodeError:
                    raise
                except Exception as error:
                    record = piece.slice(index, 1).to_pylist()[0]
                    raise raised(operator, error, record=record) from error
            if rows:
                yield rows_to_batch(self._operator, rows, self._schema)


class FilterFunctionOperator(StatelessOperator):
    """Calls `function` with each record and keeps the record when the function returns True."""

    def __init__(self, function: Callable[[Row], bool], *, operator: str) -> None:
        self._function = function
        self._operator = operator

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the records for which the function returns True.

        Raises: UserCodeError when the function raises or does not return a bool.
        """
        function = self._function
        for piece in slices(batch):
            keep: list[bool] = []
            for index, record in enumerate(rows_of(piece)):
                try:
                    verdict = function(record)
                except Exception as error:
                    record = piece.slice(index, 1).to_pylist()[0]
                    raise raised(self._operator, error, record=record) from error
                if verdict is True or verdict is False:
                    keep.append(verdict)
                    continue
                # Truth of anything else is refused: a forgotten `return` would drop every record.
                if not isinstance(verdict, np.bool_):
                    raise UserCodeError(
                        self._operator,
                        f"returned {type(verdict).__name__} {shown(verdict)} where True or False"
                        " is due",
                    )
                keep.append(bool(verdict))
            yield piece.filter(pa.array(keep, pa.bool_()))
