"""Readers of one subtask: of a table or query as it is, and of a table that grows.

State is a position for each split, or the one position of a growing table. Reading begins anew on a
lost connection; that loses nothing, since every page says where it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from ...contract.errors import HeadraceError
from ...contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)
from .connection import Connection, Database, Patience, Refused, Unavailable
from .horizon import Horizon
from .pages import Ordered, Page

_T = TypeVar("_T")

_SPLITS = pa.schema(
    [
        ("number", pa.int64()),
        ("after", pa.string()),
        ("upto", pa.string()),
        ("done", pa.bool_()),
    ]
)
#: How often to look whether transactions have ended that rows wait for.
_LOOK_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Split:
    """Rows behind `after` up to `upto` (None: no bound) that have not been read."""

    number: int
    after: str | None
    upto: str | None
    done: bool = False


class _Session:
    """A reader's connection, made anew where it was lost."""

    def __init__(self, database: Database, retry_ns: int) -> None:
        self._database = database
        self._retry_ns = retry_ns
        self._connection: Connection | None = None
        self._name = ""

    def open(self, context: OperatorContext) -> None:
        """Note the source's name."""
        self._name = context.operator

    def ask(self, step: Callable[[Connection], _T]) -> _T:
        """Perform a step, again where the server was away. Raises: HeadraceError."""
        patience = Patience(self._retry_ns)
        while True:
            try:
                if self._connection is None:
                    self._connection = self._database.connect()
                return step(self._connection)
            except Refused as error:
                raise HeadraceError(f"source {self._name!r}: the server says: {error}") from None
            except Unavailable as error:
                self.close()
                if not patience.wait():
                    waited = f"{self._retry_ns / 1e9:g} s"
                    raise HeadraceError(
                        f"source {self._name!r}: the server has been away for {waited}: {error}"
                    ) from None

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class TableReader:
    """Reads its share of the splits, one after the other."""

    def __init__(
        self, database: Database, ordered: Ordered, planned: Sequence[Split], *, retry_ns: int
    ) -> None:
        self._session = _Session(database, retry_ns)
        self._ordered = ordered
        self._planned = tuple(planned)
        self._context: OperatorContext | None = None
        #: {number: split} of this subtask; `_committed` as of the last commit.
        self._splits: dict[int, Split] = {}
        self._committed: dict[int, Split] = {}
        self._open: tuple[int | None, frozenset[str]] = (None, frozenset())
        self._page: Page | None = None

    def open(self, context: OperatorContext) -> None:
        """Take this subtask's share of the plan."""
        self._context = context
        self._session.open(context)
        self._deal(self._planned)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take this subtask's share of the checkpoint's splits, whatever is planned by now."""
        rows = [Split(**row) for state in states for row in state.table.to_pylist()]
        self._deal(rows)

    def poll(self, rows_max: int) -> Polled:
        """Read the next rows of the current split. Raises: HeadraceError."""
        split = self._current()
        if split is None:
            return Polled((), SourceStatus.END)
        if self._page is None:
            after, upto = split.after, split.upto
            self._page = self._session.ask(lambda c: self._ordered.page(c, after, upto))
        batches: tuple[pa.RecordBatch, ...] = ()
        if self._page.left:
            batch, at = self._page.take(rows_max)
            batches, split = (batch,), replace(split, after=at)
        if not self._page.left:
            split = replace(split, done=self._page.last)
            self._page = None
        self._splits = self._splits | {split.number: split}
        return Polled(batches, SourceStatus.MORE, split=str(split.number) if batches else "")

    def open_splits(self) -> frozenset[str]:
        """The split that is being read."""
        split = self._current()
        number = None if split is None else split.number
        if number != self._open[0]:
            self._open = number, frozenset(() if number is None else (str(number),))
        return self._open[1]

    def commit(self) -> None:
        """Publish the positions."""
        self._committed = self._splits

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the positions."""
        splits = self._committed
        return (StateSnapshot("splits", StateKind.UNION, lambda: _splits_table(splits.values())),)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _current(self) -> Split | None:
        return next((split for split in self._splits.values() if not split.done), None)

    def _deal(self, splits: Sequence[Split]) -> None:
        assert self._context is not None, "open() comes first"
        ordered = sorted(splits, key=lambda split: (split.done, split.number))
        own = ordered[self._context.index :: self._context.parallelism]
        self._splits = self._committed = {split.number: split for split in own}
        self._page = None


class GrowingReader:
    """Follows a table. One subtask reads it all."""

    def __init__(
        self, database: Database, ordered: Ordered, writers: str, *, every_ns: int, retry_ns: int
    ) -> None:
        self._session = _Session(database, retry_ns)
        self._ordered = ordered
        self._horizon = Horizon(ordered, writers)
        self._every_ns = every_ns
        self._after: str | None = None
        self._committed: str | None = None
        #: Up to where the rows are settled that are being read.
        self._upto: str | None = None
        self._page: Page | None = None

    def open(self, context: OperatorContext) -> None:
        """Begin at the table's beginning."""
        assert context.parallelism == 1, "one subtask reads a growing table"
        self._session.open(context)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on behind the checkpoint's position."""
        rows = [row for state in states for row in state.table.to_pylist()]
        self._after = self._committed = rows[0]["after"] if rows else None

    def poll(self, rows_max: int) -> Polled:
        """Read the next settled rows. Raises: HeadraceError."""
        if self._page is None and not self._next_page():
            wait_ns = min(self._every_ns, _LOOK_NS) if self._horizon.waits else self._every_ns
            return Polled((), SourceStatus.IDLE, wait_ns)
        assert self._page is not None, "a page is there"
        batches: tuple[pa.RecordBatch, ...] = ()
        if self._page.left:
            batch, self._after = self._page.take(rows_max)
            batches = (batch,)
        if not self._page.left:
            if self._page.last:
                # Rows up to there that were deleted in the meantime count as read.
                self._after, self._upto = self._upto, None
            self._page = None
        return Polled(batches, SourceStatus.MORE)

    def commit(self) -> None:
        """Publish the position."""
        self._committed = self._after

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the position."""
        split = Split(0, self._committed, None)
        return (StateSnapshot("splits", StateKind.UNION, lambda: _splits_table((split,))),)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _next_page(self) -> bool:
        if self._upto is None:
            after = self._after
            self._upto = self._session.ask(lambda c: self._horizon.settled(c, after))
        if self._upto is None:
            return False
        self._page = self._session.ask(lambda c: self._ordered.page(c, self._after, self._upto))
        return True


def _splits_table(splits: Iterable[Split]) -> pa.Table:
    rows = [{"number": s.number, "after": s.after, "upto": s.upto, "done": s.done} for s in splits]
    return pa.Table.from_pylist(rows, schema=_SPLITS)
