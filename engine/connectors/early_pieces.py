"""Pieces of a log that are written as records come, for readers that do not wait for checkpoints.

A thread of its own writes whatever has come while it wrote the piece before: single records while
few come, and large pieces while many do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK
from headrace.recovery.edge_log import Piece

#: Writes records from a position on, up to which event time has come: (position, table, watermark).
Write = Callable[[int, pa.Table, int], Piece]


class EarlyPieces:
    """The pieces of one lane.

    `offer` is called by the owner thread, the rest by the subtask's; never both at once.

    Args:
        write: called by `thread`.
        first: position of the first record.
        waiting_bytes_max: with more than this, `make_room` waits.
    """

    def __init__(
        self, write: Write, thread: Executor, first: int, waiting_bytes_max: int = 16 * 1024**2
    ) -> None:
        self._write = write
        self._thread = thread
        self._position = first
        self._waiting_bytes_max = waiting_bytes_max
        self._changed = threading.Condition()
        self._batches: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._watermark = MIN_WATERMARK
        self._writing: Future[None] | None = None
        self._pieces: list[Piece] = []

    def offer(self, batches: list[pa.RecordBatch], watermark: int) -> None:
        """Take records, behind which event time stands at `watermark`; waits for nothing."""
        with self._changed:
            self._batches += batches
            self._waiting_bytes += sum(batch.nbytes for batch in batches)
            self._watermark = watermark
            if self._batches and self._writing is None:
                self._writing = self._thread.submit(self._write_all)

    def make_room(self) -> None:
        """Wait while too much waits. Raises: StoreError of a piece before."""
        with self._changed:
            while self._waiting_bytes > self._waiting_bytes_max and self._writing is not None:
                if self._writing.done():
                    self._writing.result()
                self._changed.wait(1.0)

    def take(self) -> list[Piece]:
        """Write what waits; return the pieces since the last call, in order. Raises: StoreError."""
        writing = self._writing
        if writing is not None:
            writing.result()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _write_all(self) -> None:
        while True:
            with self._changed:
                batches, self._batches = self._batches, []
                self._waiting_bytes = 0
                watermark = self._watermark
                self._changed.notify_all()
                if not batches:
                    self._writing = None
                    return
            table = pa.Table.from_batches(batches)
            self._pieces.append(self._write(self._position, table, watermark))
            self._position += table.num_rows
