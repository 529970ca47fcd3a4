"""Operators around a Python function per record.

Convenient, and a hundred times slower than operators on batches. Records are dictionaries, made a
slice at a time. Results are packed into Arrow a slice at a time as well, so that an error about a
wrong value appears close to the record that caused the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..contract.errors import UserCodeError
from ..contract.user_code import (
    GivenRows,
    Row,
    raised,
    returned_rows,
    rows_of,
    rows_to_batch,
    shown,
    slices,
)
from .failures import Failures, OnError
from .stateless import StatelessOperator


class RowOperator(StatelessOperator):
    """Base of operators around a function per record: their failed records."""

    def __init__(self, operator: str, on_error: OnError) -> None:
        self._operator = operator
        self._failures = Failures(on_error, operator)

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """Hand out the dead letters."""
        return self._failures.take()


class MapOperator(RowOperator):
    """Calls `function` with each record; the function returns the record to emit."""

    def __init__(
        self,
        function: Callable[[Row], Row],
        schema_out: pa.Schema,
        *,
        operator: str,
        on_error: OnError = "fail",
    ) -> None:
        super().__init__(operator, on_error)
        self._function = function
        self._schema = schema_out

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit one record per record.

        Raises: UserCodeError when the function raises or returns a record that does not fit the
        schema.
        """
        function = self._function
        for piece in slices(batch):
            if self._failures.kept:
                yield from self._process_each(piece)
                continue
            given = GivenRows(piece)
            results: list[Row] = []
            append = results.append
            try:
                for record in given.rows:
                    append(function(record))
            except BaseException as error:
                record = piece.slice(len(results), 1).to_pylist()[0]
                raise raised(self._operator, error, record=record) from error
            yield rows_to_batch(self._operator, results, self._schema, given.rows, given)

    def _process_each(self, piece: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Emit the results of the records that do not fail."""
        results: list[tuple[int, list[Row]]] = []
        for index, record in enumerate(rows_of(piece)):
            try:
                results.append((index, [self._function(record)]))
            except BaseException as error:
                self._failures.add(piece.slice(index, 1), error)
        return self._failures.fitting(piece, results, self._schema)


class FlatMapOperator(RowOperator):
    """Calls `function` with each record; the function returns the records to emit.

    The function returns an iterable (a generator will do), or None.
    """

    def __init__(
        self,
        function: Callable[[Row], Iterable[Row] | None],
        schema_out: pa.Schema,
        *,
        operator: str,
        on_error: OnError = "fail",
    ) -> None:
        super().__init__(operator, on_error)
        self._function = function
        self._schema = schema_out

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the function's records, in order.

        Raises: UserCodeError as `MapOperator.process`.
        """
        function, operator = self._function, self._operator
        for piece in slices(batch):
            if self._failures.kept:
                yield from self._process_each(piece)
                continue
            rows: list[Row] = []
            for index, record in enumerate(rows_of(piece)):
                try:
                    rows.extend(returned_rows(operator, function(record)))
                except UserCodeError:
                    raise
                except BaseException as error:
                    record = piece.slice(index, 1).to_pylist()[0]
                    raise raised(operator, error, record=record) from error
            if rows:
                yield rows_to_batch(self._operator, rows, self._schema)

    def _process_each(self, piece: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Emit the results of the records that do not fail."""
        results: list[tuple[int, list[Row]]] = []
        for index, record in enumerate(rows_of(piece)):
            try:
                results.append((index, list(returned_rows(self._operator, self._function(record)))))
            except BaseException as error:
                self._failures.add(piece.slice(index, 1), error)
        return self._failures.fitting(piece, results, self._schema)


class FilterFunctionOperator(RowOperator):
    """Calls `function` with each record and keeps the record when the function returns True."""

    def __init__(
        self, function: Callable[[Row], bool], *, operator: str, on_error: OnError = "fail"
    ) -> None:
        super().__init__(operator, on_error)
        self._function = function

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
                    if verdict is not True and verdict is not False:
                        verdict = self._checked(verdict)
                except BaseException as error:
                    failed = piece.slice(index, 1)
                    if not self._failures.kept:
                        if isinstance(error, UserCodeError):
                            raise
                        record = failed.to_pylist()[0]
                        raise raised(self._operator, error, record=record) from error
                    self._failures.add(failed, error)
                    verdict = False
                keep.append(verdict)
            yield piece.filter(pa.array(keep, pa.bool_()))

    def _checked(self, verdict: object) -> bool:
        # Truth of anything else is refused: a forgotten `return` would drop every record.
        if not isinstance(verdict, bool | np.bool_):
            raise UserCodeError(
                self._operator,
                f"returned {type(verdict).__name__} {shown(verdict)} where True or False is due",
            )
        return bool(verdict)
