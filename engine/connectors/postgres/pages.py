"""Rows of a table or query in the order of a column, page by page, from any position.

A position is the last value that was handed out, as text; every row up to it has been handed out.
So pages and slices end where the value changes: rows with equal values stay together. The server
orders and compares.

Rows of a table that is read without a column are in the order of their places (`ctid`), which
count as numbers here: block times 65,536 plus the row's number in the block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .connection import Connection, identifier, literal

PAGE_ROWS = 65_536
_AT = "__headrace_at"
_BLOCK_BITS = 16


@dataclass(frozen=True, slots=True)
class Ordered:
    """What to read, and in which order.

    Attributes:
        relation: as FROM takes it.
        column: the order; "": places in the table.
        type: of the column, in SQL.
        selected: an expression for each column of `schema`.
        schema: of the batches.
    """

    relation: str
    column: str
    type: str
    selected: tuple[str, ...]
    schema: pa.Schema

    def page(
        self, connection: Connection, after: str | None, upto: str | None, rows: int = PAGE_ROWS
    ) -> Page:
        """Read rows behind `after` up to `upto`: about `rows`, or all that are left.

        Raises: Refused, Unavailable.
        """
        bounds = [] if after is None else [f"{self._key} > {self._value(after)}"]
        bounds += [] if upto is None else [f"{self._key} <= {self._value(upto)}"]
        table = self._fetch(connection, bounds, rows)
        if table.num_rows < rows:
            return Page(table, self.schema, last=True)
        # Rows with the page's last value may be behind the page.
        edge = table.column(_AT)[-1]
        whole = table.filter(pc.not_equal(table.column(_AT), edge))
        if not whole.num_rows:
            whole = self._fetch(connection, [f"{self._key} = {self._value(str(edge))}"], None)
        return Page(whole, self.schema, last=False)

    def ends(self, connection: Connection) -> tuple[str | None, str | None]:
        """The least and the greatest value; None: there are no rows."""
        query = f"SELECT min({self._key}) AS first, max({self._key}) AS last FROM {self.relation}"
        (row,) = connection.rows(query)
        return _text(row["first"]), _text(row["last"])

    def newest(self, connection: Connection, after: str | None) -> str | None:
        """The greatest value behind `after`; None: there is none."""
        bound = "" if after is None else f" WHERE {self._key} > {self._value(after)}"
        query = f"SELECT max({self._key}) AS last FROM {self.relation}{bound}"
        return _text(connection.value(query))

    @property
    def _key(self) -> str:
        return identifier(self.column) if self.column else "ctid"

    def _value(self, position: str) -> str:
        if self.column:
            return f"{literal(position)}::{self.type}"
        block, row = divmod(int(position), 1 << _BLOCK_BITS)
        return f"'({block},{row})'::tid"

    def _fetch(self, connection: Connection, bounds: list[str], rows: int | None) -> pa.Table:
        at = identifier(self.column) if self.column else _PLACE
        where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
        limit = "" if rows is None else f" LIMIT {rows}"
        return connection.table(
            f"SELECT {', '.join([*self.selected, f'{at} AS {_AT}'])} FROM {self.relation}{where}"
            f" ORDER BY {self._key}{limit}"
        )


class Page:
    """Rows that were read together, handed out in slices.

    Attributes:
        last: no row is left behind them.
    """

    def __init__(self, table: pa.Table, schema: pa.Schema, *, last: bool) -> None:
        self.last = last
        table = table.combine_chunks()
        self._at = table.column(_AT)
        columns = [_as(table.column(i), field.type) for i, field in enumerate(schema)]
        self._rows = pa.Table.from_arrays(columns, schema=schema)
        self._ends = _ends(self._at)
        self._next = 0

    @property
    def left(self) -> int:
        """Rows that are not handed out."""
        return int(self._rows.num_rows) - self._next

    def take(self, rows_max: int) -> tuple[pa.RecordBatch, str]:
        """Hand out the next rows and their position; more than `rows_max` where one value has more.

        There must be some.
        """
        fits = int(np.searchsorted(self._ends, self._next + rows_max, side="right")) - 1
        first = int(np.searchsorted(self._ends, self._next, side="right"))
        end = int(self._ends[max(fits, first)])
        batch = self._rows.slice(self._next, end - self._next).combine_chunks().to_batches()[0]
        self._next = end
        return batch, str(self._at[end - 1])


def place(block: int) -> str:
    """The position before the first row of a block."""
    return str(block << _BLOCK_BITS)


def _ends(at: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where the value changes: the index behind the last row of each run of equal values."""
    if not len(at):
        return np.zeros(0, np.int64)
    changes = pc.not_equal(at.slice(1), at.slice(0, len(at) - 1))
    inner = np.flatnonzero(changes.to_numpy()) + 1
    return np.append(inner, len(at)).astype(np.int64)


def _as(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == type_ else column.cast(type_)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_PLACE = "(((ctid::text::point)[0])::int8 << 16) + ((ctid::text::point)[1])::int8"
