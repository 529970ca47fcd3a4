"""The rows that a join emits."""

from __future__ import annotations

import pyarrow as pa

from ..contract.errors import UserError
from .join_input import JoinInput
from .window_store import END, START
from .windows import Times, TimeWindow, Window, from_times

#: Appended to the name of a right column that the left has, too.
SUFFIX = "_right"


class JoinOutput:
    """The left side's columns, the right side's without keys, and the window of a windowed join.

    Attributes:
        schema: of the joined rows.
    """

    def __init__(self, left: JoinInput, right: JoinInput, window: Window | None) -> None:
        self._inputs = (left, right)
        self._window = window
        self._right_names = [name for name in right.schema.names if name not in right.keys]
        self.schema = _schema(left, right, window)

    def pairs(
        self, left: pa.RecordBatch, right: pa.RecordBatch, time: Times, end: Times | None = None
    ) -> pa.RecordBatch:
        """Join rows of both sides, row by row.

        Args:
            time: the start of each pair's window.
            end: the end of each pair's session; None without sessions.
        """
        columns = [*left.columns, *(right.column(name) for name in self._right_names)]
        return self._batch(columns, time, end)

    def alone(
        self, side: int, rows: pa.RecordBatch, time: Times, end: Times | None = None
    ) -> pa.RecordBatch:
        """Emit rows of one side: the other side's columns are null, but the key is there."""
        left, right = self._inputs
        if side == 0:
            nulls = [pa.nulls(len(rows), right.schema.field(n).type) for n in self._right_names]
            return self._batch([*rows.columns, *nulls], time, end)
        key_of = dict(zip(left.keys, right.keys, strict=True))
        columns = [
            rows.column(key_of[field.name])
            if field.name in key_of
            else pa.nulls(len(rows), field.type)
            for field in left.schema
        ]
        others = [rows.column(name) for name in self._right_names]
        return self._batch([*columns, *others], time, end)

    def _batch(self, columns: list[pa.Array], time: Times, end: Times | None) -> pa.RecordBatch:
        if self._window is not None:
            type_ = self.schema.field(START).type
            if isinstance(self._window, TimeWindow):
                end = time + self._window.size_ns
            assert end is not None, "a session has an end"
            columns = [*columns, from_times(time, type_), from_times(end, type_)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _schema(left: JoinInput, right: JoinInput, window: Window | None) -> pa.Schema:
    """Make the schema. Raises: UserError when two columns have one name."""
    fields = [field.with_nullable(True) for field in left.schema]
    for field in right.schema:
        if field.name not in right.keys:
            name = field.name + (SUFFIX if field.name in left.schema.names else "")
            fields.append(pa.field(name, field.type))
    if window is not None:
        type_ = left.schema.field(left.event_time).type
        fields += [pa.field(START, type_, nullable=False), pa.field(END, type_, nullable=False)]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"join: the result would have two columns {name!r}; rename one with select() before"
            )
    return pa.schema(fields)
