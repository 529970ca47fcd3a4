"""The operator that reads splits: split records in, the records of the splits out.

Splits that are not read to the end are state, with the rows emitted so far; a rescale deals them
out anew. While there are any, the operator asks to be called at once, again and again
(`ProcessingTimeOperator`), and emits a bounded piece in each call: so a cut falls between two
pieces, and new split records wait in the channel. When all input has ended, the last watermark is
held back until all splits are read.

A split that is not repeatable is emitted whole in one call, so that no cut falls into it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK

from ..contract.connectors import Split, SplitReader, SplitSource
from ..contract.errors import UserCodeError
from ..contract.operators import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateKind,
    StateSnapshot,
)
from ..contract.user_code import Blames

#: A split as a record. Format, never change.
SPLITS = pa.schema([("name", pa.string()), ("payload", pa.string())])
#: A split as state, with the rows emitted so far. Format, never change.
_BEGUN = pa.schema([*SPLITS, ("rows", pa.int64())])
_STATE = "splits"


def split_rows(splits: Iterable[Split]) -> list[dict[str, str]]:
    """Return splits as rows of `SPLITS`. Raises: ValueError for a split that cannot travel."""
    return [{"name": _name(split), "payload": _payload(split)} for split in splits]


def _name(split: Split) -> str:
    if not isinstance(split.name, str) or not split.name:
        raise ValueError(f"a split is named {split.name!r}; a name is a text that is not empty")
    return split.name


def _payload(split: Split) -> str:
    for key, value in split.payload.items():
        plain = isinstance(key, str) and isinstance(value, str | int)
        if not plain or isinstance(value, bool):
            raise ValueError(
                f"split {split.name!r} holds {key!r}: {value!r}; a payload holds strings and"
                " integers by names"
            )
    return json.dumps(split.payload)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A split that is not read to the end. `rows`: emitted so far."""

    split: Split
    rows: int = 0


class SplitsOperator:
    """Reads the splits that come to one subtask, one after the other."""

    def __init__(self, source: SplitSource, *, operator: str) -> None:
        self._source = source
        self._schema = source.schema
        self._blames = Blames(operator, "")
        self._operator = operator
        self._reader: SplitReader | None = None
        #: The first is being read.
        self._left: deque[_Begun] = deque()
        self._batches: Iterator[pa.RecordBatch] | None = None
        #: Rows of the first split that were read and not emitted.
        self._rest: pa.RecordBatch | None = None
        self._committed: tuple[_Begun, ...] = ()
        self._now_ns = 0
        self._index, self._parallelism = 0, 1

    # --- the life of an operator ------------------------------------------------------------------

    def open(self, context: OperatorContext) -> None:
        """Make and open the reader."""
        self._index, self._parallelism = context.index, context.parallelism
        self._reader = self._source.reader()
        self._reader.open(context)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take this subtask's share of all splits; they are read on with the next work."""
        rows = [row for state in states for row in state.table.to_pylist()]
        rows.sort(key=lambda row: row["name"])  # every subtask deals them out alike
        for row in rows[self._index :: self._parallelism]:
            self._left.append(_Begun(_split(row), row["rows"]))
        self.commit()

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take splits; they are read by the clock."""
        self._left.extend(_Begun(_split(row)) for row in batch.to_pylist())
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """All splits are read: the last watermark waited for them."""
        assert not self._left, f"{self._operator}: {len(self._left)} splits are left"
        return ()

    def commit(self) -> None:
        """Let snapshots see how far the splits are read."""
        self._committed = tuple(self._left)

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the splits that are not read to the end."""
        left = self._committed

        def table() -> pa.Table:
            rows = [
                {**row, "rows": begun.rows}
                for begun, row in zip(left, split_rows(b.split for b in left), strict=True)
            ]
            return pa.Table.from_pylist(rows, schema=_BEGUN)

        return (StateSnapshot(_STATE, StateKind.UNION, table),)

    def close(self) -> None:
        """Close the reader."""
        self._batches = None
        if self._reader is not None:
            self._reader.close()

    # --- by event time and by the clock -----------------------------------------------------------

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Pass watermarks on; before the last one emit all that is left, piece by piece."""
        if watermark_ns < MAX_WATERMARK:
            return Advanced((), done=True)
        found = self._piece(rows_max)
        return Advanced(found, done=not self._left)

    def tell_time(self, now_ns: int) -> None:
        """See `ProcessingTimeOperator`."""
        self._now_ns = now_ns

    def next_timer_ns(self) -> int | None:
        """At once, while splits are left."""
        return self._now_ns if self._left else None

    def fire(self, now_ns: int, rows_max: int) -> Iterable[pa.RecordBatch]:
        """Emit the next piece."""
        return self._piece(rows_max)

    # --- reading ----------------------------------------------------------------------------------

    def _piece(self, rows_max: int) -> list[pa.RecordBatch]:
        """Read about `rows_max` rows; of a split that is not repeatable all.

        Raises: UserCodeError.
        """
        found: list[pa.RecordBatch] = []
        rows = 0
        with self._blames:
            while self._left and (rows < rows_max or self._is_in_midst):
                batch = self._read_on(rows_max - rows if self._source.repeatable else None)
                if batch is not None:
                    found.append(batch)
                    rows += batch.num_rows
        return found

    @property
    def _is_in_midst(self) -> bool:
        """The first split is begun, and must be read to its end in this call."""
        return not self._source.repeatable and self._batches is not None

    def _read_on(self, rows_max: int | None) -> pa.RecordBatch | None:
        """Return the next rows of the first split; None: it has no more."""
        begun = self._left[0]
        if self._rest is None:
            self._rest = self._next_batch(begun)
        if self._rest is None:
            self._left.popleft()
            self._batches = None
            return None
        batch: pa.RecordBatch = self._rest.slice(0, rows_max)
        rest = self._rest.slice(batch.num_rows)
        self._rest = rest if rest.num_rows else None
        self._left[0] = replace(begun, rows=begun.rows + batch.num_rows)
        return batch

    def _next_batch(self, begun: _Begun) -> pa.RecordBatch | None:
        if self._batches is None:
            assert self._reader is not None, "opened"
            self._batches = iter(self._reader.read(begun.split, begun.rows))
        for batch in self._batches:
            if not batch.schema.equals(self._schema):
                raise UserCodeError(
                    self._operator,
                    f"split {begun.split.name!r} gave records of ({_columns(batch.schema)}), and"
                    f" the source says ({_columns(self._schema)})",
                )
            if batch.num_rows:
                return batch
        return None


def _split(row: dict[str, Any]) -> Split:
    return Split(row["name"], json.loads(row["payload"]))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
