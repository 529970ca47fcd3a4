"""Tables of rows in memory: every row is at hand, in the operator's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from ..backend import DueRowsAtHand, RowsAtHand
from ..slots import Slots
from ..tables import keyed_table


class HeapRows:
    """See `RowTable`."""

    def __init__(self, at_hand: RowsAtHand, max_parallelism: int) -> None:
        self._at_hand = at_hand
        self._max_parallelism = max_parallelism

    def recall(self) -> None:
        """Every row is at hand."""

    def recall_keys(self) -> None:
        """Every row is at hand."""

    def keep(self, changed: Slots) -> None:
        """See `RowTable`."""
        self._at_hand.stage(changed)

    def load(self, rows: pa.RecordBatch) -> None:
        """See `RowTable`."""
        self._at_hand.load(self._at_hand.number(rows), rows)

    def scan(self) -> Iterator[Slots]:
        """Yield all slots at once."""
        if self._at_hand.count:
            yield np.arange(self._at_hand.count)

    def commit(self) -> None:
        """Publish the staged rows."""
        self._at_hand.publish()

    def freeze(self) -> Callable[[], pa.Table]:
        """Copy the committed rows; the result makes their table."""
        rows = self._at_hand.freeze()
        layout, max_parallelism = self._at_hand.layout, self._max_parallelism
        names = layout.schema.names[: self._at_hand.grouped]
        return lambda: keyed_table(rows(), names, max_parallelism)


class HeapDueRows(HeapRows):
    """See `DueTable`. The due times are a column with a known minimum."""

    def __init__(self, at_hand: DueRowsAtHand, max_parallelism: int) -> None:
        super().__init__(at_hand, max_parallelism)
        self._due = at_hand
        #: Nothing is due before; None: to be computed.
        self._next: int | None = None
        #: Due rows that have not been handed out.
        self._waiting: Slots | None = None

    def keep(self, changed: Slots) -> None:
        """See `RowTable`."""
        super().keep(changed)
        if self._next is not None and len(changed):
            self._next = min(self._next, self._due.next_due(changed))

    def load(self, rows: pa.RecordBatch) -> None:
        """See `RowTable`."""
        super().load(rows)
        self._next = None

    def due(self, until_ns: int, rows_max: int) -> tuple[Slots, bool]:
        """See `DueTable`."""
        if self._waiting is None:
            if self._next is None:
                self._next = self._due.next_due()
            if self._next > until_ns:
                return np.zeros(0, np.int64), True
            self._waiting = self._due.due(until_ns)
        slots, rest = self._waiting[:rows_max], self._waiting[rows_max:]
        done = not len(rest)
        if done:
            self._next = None
        self._waiting = None if done else rest
        return slots, done

    def passed(self, slots: Slots) -> None:
        """Keep ended rows until the operator compacts its columns."""
