"""Connect in simulated jobs: a keyed history, and totals of a second stream by every subtask.

The run decides which keyed records come after a broadcast record. So each stream is checked by
itself: the keyed stream like a history, the broadcast stream like the output of `Gather`, by each
subtask at the end of input.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from ...contract.operators import OperatorContext
from ...operators.connect import BroadcastProcessor, ConnectOperator
from ...state.broadcast import broadcast_state
from .operators import History
from .source import SCHEMA

#: The path of totals at the end; no task stands at that digit.
TOLD_PATH: Final = 15
#: Key of the entry that says that the totals were told.
_TOLD: Final = -1


class Told(History, BroadcastProcessor):
    """A history by key; the broadcast side counts and sums ids by key."""

    counts = broadcast_state(pa.int64(), pa.int64())
    totals = broadcast_state(pa.int64(), pa.int64())

    def process_broadcast(self, row: dict[str, Any]) -> None:
        """Count."""
        key = row["key"]
        self.counts[key] = self.counts.get(key, 0) + 1
        self.totals[key] = self.totals.get(key, 0) + row["id"]


class Connected(ConnectOperator):
    """Runs `Told`, and tells the totals when the input ends, unless an ancestor has."""

    def __init__(self, task: int, main_ports: int, name: str) -> None:
        super().__init__(Told(task), ["key"], main_ports, SCHEMA, SCHEMA, operator=name)
        self._index = 0

    def open(self, context: OperatorContext) -> None:
        """Note which subtask this is."""
        super().open(context)
        self._index = context.index

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Tell a record per key."""
        processor = self._processor
        assert isinstance(processor, Told), "opened"
        counts, totals = dict(processor.counts), dict(processor.totals)
        if _TOLD in counts:
            return
        processor.counts.changeable = True
        processor.counts[_TOLD] = 1
        processor.counts.changeable = False
        rows = [
            (totals[k] * 31 + counts[k], k, TOLD_PATH, 0, 0, self._index) for k in sorted(counts)
        ]
        if rows:
            columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
