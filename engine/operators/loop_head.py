"""The head of a loop: new records and those that come round again become one stream."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from .stateless import StatelessOperator


class LoopHead(StatelessOperator):
    """Passes records on: an operator at which entries and back-edges of a loop meet."""

    def __init__(self, *, operator: str) -> None:
        self._operator = operator

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Emit the batch."""
        return (batch,)
