"""Records whose call failed: dropped, or sent to a dead-letter stream, by an operator's `on_error`.

A dead letter holds the record as a struct of the input's columns, so it is lossless for any input
and can be worked on again: `letters.select(amount=pc.field("record", "amount"))`.

Rejected: the record as JSON text, equal for all operators, which loses types and binary values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import pyarrow as pa

from ..contract.errors import UserCodeError
from ..contract.user_code import Row, forget_frames, message_of, rows_to_batch

#: What happens to a record whose call fails: the job fails; the record is dropped and counted; the
#: record is sent to the operator's dead-letter stream.
OnError = Literal["fail", "skip", "route"]

ON_ERROR: Final[tuple[OnError, ...]] = ("fail", "skip", "route")


def letter_schema(records: pa.Schema) -> pa.Schema:
    """Return the schema of dead letters of an operator with input `records`."""
    return pa.schema(
        [
            pa.field("operator", pa.string(), nullable=False),
            pa.field("error", pa.string(), nullable=False),
            pa.field("message", pa.string(), nullable=False),
            pa.field("record", pa.struct(list(records)), nullable=False),
        ]
    )


class Failures:
    """Dead letters of the running call, until the chain takes them."""

    def __init__(self, on_error: OnError, operator: str) -> None:
        #: False: the first failure is the job's.
        self.kept = on_error != "fail"
        self._operator = operator
        self._letters: list[pa.RecordBatch] = []

    def add(self, record: pa.RecordBatch, error: BaseException) -> None:
        """Keep a record (a batch of one row) whose call raised, or returned a misfit."""
        assert record.num_rows == 1, f"{record.num_rows} records"
        message = error.message if isinstance(error, UserCodeError) else message_of(error)
        forget_frames(error)
        schema = letter_schema(record.schema)
        struct = pa.StructArray.from_arrays(record.columns, fields=list(record.schema))
        told = [[self._operator], [type(error).__name__], [message]]
        columns = [*(pa.array(cells, pa.string()) for cells in told), struct]
        self._letters.append(pa.RecordBatch.from_arrays(columns, schema=schema))

    def take(self) -> Sequence[pa.RecordBatch]:
        """Return the dead letters since the last call, as one batch."""
        taken, self._letters = self._letters, []
        return [pa.concat_batches(taken)] if taken else ()

    def fitting(
        self, batch: pa.RecordBatch, results: Sequence[tuple[int, list[Row]]], schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        """Make batches of the rows that fit `schema`; the records of other rows have failed.

        Args:
            results: (row of `batch`, rows that it became), in order.
        """
        rows = [row for _, made in results for row in made]
        if not rows:
            return []
        try:
            return [rows_to_batch(self._operator, rows, schema)]
        except UserCodeError as error:
            if len(results) == 1:
                index, _ = results[0]
                self.add(batch.slice(index, 1), error)
                return []
        half = len(results) // 2
        first = self.fitting(batch, results[:half], schema)
        return [*first, *self.fitting(batch, results[half:], schema)]
