"""Samples of passing records, printed as a user's function would print them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from .stateless import StatelessOperator


class InspectOperator(StatelessOperator):
    """Passes records on, and prints one of them from time to time.

    Args:
        label: before each line.
        every_ns: the shortest time between two lines.
    """

    def __init__(
        self,
        label: str,
        every_ns: int,
        *,
        operator: str = "inspect",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._label = label or operator
        self._every_ns = every_ns
        self._clock = clock
        self._printed_ns: int | None = None
        self._passed = 0

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Pass on; print the first record of the batch when it is time."""
        now_ns = self._clock()
        if self._printed_ns is None or now_ns - self._printed_ns >= self._every_ns:
            self._printed_ns = now_ns
            (row,) = batch.slice(0, 1).to_pylist()
            print(f"{self._label}: record {self._passed:,}: {row}")
        self._passed += batch.num_rows
        return [batch]
