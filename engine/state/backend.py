"""The seam between operators and the places of keyed state: a backend and its kinds of tables.

An operator asks its backend for tables when the operator opens, and then knows neither memory nor
disk:

    values   Python objects by key: declared state
    rows     rows that the operator works on in columns: aggregates, windows, sessions
    records  many records of a key, found by time: joins

A call reads committed state and its own writes; the tables keep the writes aside, and `commit`
publishes the writes at once. `commit`, `snapshot` and `freeze_database` run in the owner thread
without I/O, everything else in the subtask's thread.

Backends: `heap/` and `rocks/`. The choice of a backend: `engine/operators/backends.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from headrace.channels.hashing import Hashes

from ..contract.operators import (
    DatabaseSnapshot,
    RestoredDatabase,
    RestoredState,
    StateLayout,
    StateSnapshot,
)
from .arrays import Mask
from .runs import Rows, Run, Times
from .slots import Slots
from .types import Cell, Key

#: Suffix of the state that holds when rows are due, in a database. Format, never change.
DUE_SUFFIX: Final = "_due"
#: State of a database: how many records it has numbered. Format, never change.
SEQUENCE_STATE: Final = "sequence"
#: Columns that a database adds to records. Format, never change.
ADDED: Final = ("__hash", "__at", "__number")


class Mark:
    """Values outside every Arrow type."""


#: The value of a key without state; among writes: the key's state is cleared.
ABSENT: Final = Mark()


class ValueTable(Protocol):
    """Committed values of one declared state, by key. Neither side changes a value in place."""

    def get(self, key: Key, default: Cell, /) -> Cell:
        """Return the value, or `default`."""
        ...

    def merge(self, written: dict[Key, Cell]) -> None:
        """Publish writes with the next `commit`; `ABSENT` removes. Owner thread."""
        ...

    def load(self, items: Iterable[tuple[Key, Cell]]) -> None:
        """Take restored values."""
        ...

    def some(self, count: int) -> tuple[list[tuple[Key, Cell]], bool]:
        """Return about `count` next keys of a round through the table; True: the round is over."""
        ...


class RowsAtHand(Protocol):
    """The operator's side of a table of rows: columns, with a slot for each row at hand.

    The first `layout.keys` columns name a row. The first `grouped` of them decide the key group.
    """

    @property
    def layout(self) -> StateLayout: ...

    @property
    def grouped(self) -> int: ...

    @property
    def count(self) -> int:
        """Slots in use, from 0."""
        ...

    def forget(self) -> None:
        """Begin anew without rows."""
        ...

    def keys(self) -> list[pa.Array]:
        """Make the first `grouped` columns of the distinct keys at hand."""
        ...

    def names(self, slots: Slots) -> list[pa.Array]:
        """Make the columns that name rows."""
        ...

    def values(self, slots: Slots) -> list[pa.Array]:
        """Make the other columns, as the running call sees them."""
        ...

    def number(self, rows: pa.RecordBatch) -> Slots:
        """Give slots to rows."""
        ...

    def load(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Take stored rows, as committed ones."""
        ...

    def stage(self, slots: Slots) -> None:
        """Mark changed rows for `publish`."""
        ...

    def publish(self) -> None:
        """Show staged rows to `freeze`. Owner thread."""
        ...

    def freeze(self) -> Callable[[], pa.RecordBatch]:
        """Copy the published rows; the result makes a batch of the copy, in any thread.

        Owner thread.
        """
        ...


class KeptRowsAtHand(RowsAtHand, Protocol):
    """Rows that may stay at hand between calls. The columns that name a row are its key."""

    @property
    def size_bytes(self) -> int:
        """Memory of the rows at hand; objects are estimated."""
        ...


class DueRowsAtHand(RowsAtHand, Protocol):
    """Rows at hand with a due time, perhaps a second one, and an end."""

    def live(self, slots: Slots) -> Mask:
        """Tell the rows that have not ended."""
        ...

    def due_at(self, rows: pa.RecordBatch) -> Times:
        """Tell when stored rows are due."""
        ...

    def due(self, until_ns: int) -> Slots:
        """Find rows at hand due up to `until_ns`, the earliest first."""
        ...

    def next_due(self, slots: Slots | None = None) -> int:
        """Return the earliest due time of these rows, or of all."""
        ...


class RowTable(Protocol):
    """A table of rows; some or all are at hand.

    `KeyedBackend.begin` may forget the rows at hand. Rows that stay at hand keep their slots.
    """

    def recall(self) -> None:
        """Load the stored values of all rows numbered since `begin`."""
        ...

    def recall_keys(self) -> None:
        """Load and number all stored rows of the keys at hand."""
        ...

    def keep(self, changed: Slots) -> None:
        """Store changed rows. A slot may be named more than once."""
        ...

    def load(self, rows: pa.RecordBatch) -> None:
        """Take restored rows."""
        ...

    def scan(self) -> Iterator[Slots]:
        """Bring all rows to hand, a part at a time, and yield their slots."""
        ...


class DueTable(RowTable, Protocol):
    """A table of rows with an index of due times."""

    def due(self, until_ns: int, rows_max: int) -> tuple[Slots, bool]:
        """Bring rows due up to `until_ns` to hand, the earliest first; True: all are at hand."""
        ...

    def passed(self, slots: Slots) -> None:
        """Store the present rows of the last `due`; ended rows are deleted."""
        ...


class Held(Protocol):
    """Found records, as a sorted run."""

    @property
    def run(self) -> Run: ...

    def met(self, rows: Rows) -> None:
        """Mark records as matched by the other side."""
        ...

    def drop(self, rows: Rows) -> None:
        """Forget records."""
        ...


@dataclass(frozen=True, slots=True)
class Expired:
    """Expired records without a match on the other side.

    Attributes:
        count: records towards the limit of the call.
        done: no expired record is left.
    """

    rows: pa.RecordBatch
    time: Times
    count: int
    done: bool


class RecordTable(Protocol):
    """Many records of each key, found by the hash of the key and by time."""

    def add(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """Keep records; `matched` marks records with a match on the other side."""
        ...

    def load(self, batch: pa.RecordBatch, time: Times, matched: Mask) -> None:
        """Take restored records."""
        ...

    def find(self, hashes: Hashes, low: Times, high: Times) -> Sequence[Held]:
        """Find all records with these hashes and low <= time <= high, and perhaps others."""
        ...

    def expired(self, watermark_ns: int, rows_max: int) -> Expired:
        """Drop about `rows_max` expired records."""
        ...


class KeyedBackend(Protocol):
    """The keyed state of one operator of one subtask."""

    def values(
        self,
        name: str,
        keys: Sequence[pa.Field],
        type_: pa.DataType,
        from_arrow: Callable[[Cell], Cell],
    ) -> ValueTable:
        """Add a table of values. `from_arrow` turns a cell of `to_pylist` into a value."""
        ...

    def rows(self, at_hand: KeptRowsAtHand) -> RowTable:
        """Add a table of rows."""
        ...

    def due_rows(self, at_hand: DueRowsAtHand) -> DueTable:
        """Add a table of rows with due times."""
        ...

    def records(
        self,
        name: str,
        schema: pa.Schema,
        keys: Sequence[str],
        kept_ns: int | None,
        *,
        unmatched: bool,
    ) -> RecordTable:
        """Add a table of records.

        Args:
            kept_ns: records expire so long after their time; None: the operator drops them.
            unmatched: `expired` returns the records without a match.
        """
        ...

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Begin with these databases; False: the operator restores their tables."""
        ...

    def restore_own(self, states: Iterable[RestoredState]) -> None:
        """Take the backend's own states, before any table is loaded."""
        ...

    def begin(self) -> None:
        """Start a call."""
        ...

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Prepare all tables of values for reads of `keys`."""
        ...

    def commit(self) -> None:
        """Publish the writes of the call that ended. Owner thread."""
        ...

    def snapshot(self) -> list[StateSnapshot]:
        """Freeze committed tables outside a database. Owner thread."""
        ...

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze the committed database, if there is any. Owner thread."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...
