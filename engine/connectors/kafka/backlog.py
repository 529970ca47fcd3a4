"""Fetched records of one partition that wait to be handed out, and how far the partition is read.

Batches are decoded when their turn comes, several small ones at once. With committed records alone,
the batches of aborted transactions are passed over: a fetch names their producers and where each
begins, and the mark of the transaction's end says how far it reaches. Marks are no records, and
take offsets all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .cluster import Partition
from .fetch import Fetched
from .record_batch import Batch, Records, batches, decode, is_abort


@dataclass(frozen=True, slots=True)
class _Piece:
    """A batch within fetched bytes; `hidden`: of an aborted transaction, or a mark."""

    data: pa.Buffer
    batch: Batch
    hidden: bool


class Backlog:
    """A partition being read.

    Attributes:
        partition: whose.
        position: offset of the next record to hand out.
        fetch_offset: offset to fetch from.
        stop: offset at which reading ends; None: never.
        size_bytes: of what was fetched and waits.
    """

    def __init__(
        self,
        partition: Partition,
        position: int,
        *,
        stop: int | None,
        committed: bool,
        with_headers: bool,
    ) -> None:
        self.partition = partition
        self.position = position
        self.fetch_offset = position
        self.stop = stop
        self.size_bytes = 0
        self._committed = committed
        self._with_headers = with_headers
        self._pieces: deque[_Piece] = deque()
        #: Decoded records, which of them is next, and the position behind the last.
        self._records: Records | None = None
        self._row = 0
        self._behind = position

    @property
    def is_done(self) -> bool:
        """Whether everything up to `stop` has been handed out."""
        return self.stop is not None and self.position >= self.stop

    @property
    def wants_more(self) -> bool:
        """Whether records before `stop` have not been fetched."""
        return self.stop is None or self.fetch_offset < self.stop

    @property
    def is_empty(self) -> bool:
        """Whether nothing that was fetched waits."""
        return self._records is None and not self._pieces

    def move(self, position: int) -> None:
        """Go on elsewhere; nothing that was fetched may wait."""
        assert self.is_empty, f"{self.partition}: records wait"
        self.position = self.fetch_offset = position

    def add(self, fetched: Fetched) -> None:
        """Take the records of a fetch from `fetch_offset`. Raises: CorruptBatch."""
        found = batches(fetched.records)
        hidden = (
            hidden_batches(fetched, found) if self._committed else [b.is_control for b in found]
        )
        for batch, is_hidden in zip(found, hidden, strict=True):
            if batch.next_offset > self.fetch_offset:
                self._pieces.append(_Piece(fetched.records, batch, is_hidden))
                self.size_bytes += batch.end - batch.begin
                self.fetch_offset = batch.next_offset

    def take(self, rows_max: int) -> Records | None:
        """Hand out the next records, about `rows_max` at most, and move on behind them.

        None: there are none now; the position may have moved all the same. Raises: CorruptBatch.
        """
        while self._records is None:
            if not self._pieces or self.is_done:
                return None
            self._decode(rows_max)
        records = self._records
        left = len(records.offsets) - self._row
        # In equal parts: a small last part would cost as much as a large one.
        count = -(-left // -(-left // rows_max))
        part = sliced(records, self._row, count)
        self._row += count
        if count == left:
            self._records = None
            self.position = self._behind
        else:
            self.position = records.offsets[self._row].as_py()
        return part

    def _decode(self, rows_max: int) -> None:
        """Decode the next batches of one fetch, until they hold enough records."""
        group: list[_Piece] = []
        rows = 0
        while self._pieces and rows < rows_max:
            if group and self._pieces[0].data is not group[0].data:
                break
            piece = self._pieces.popleft()
            self.size_bytes -= piece.batch.end - piece.batch.begin
            self._behind = piece.batch.next_offset
            if self.stop is not None:
                # Another run may go on behind the stop.
                self._behind = min(self._behind, self.stop)
            if not piece.hidden and piece.batch.count:
                group.append(piece)
                rows += piece.batch.count
        records = None
        if group:
            decoded = decode(
                group[0].data,
                [piece.batch for piece in group],
                with_headers=self._with_headers,
            )
            records = between(decoded, self.position, self.stop)
        if records is None or not len(records.offsets):
            self.position = max(self.position, self._behind)
            return
        self._records, self._row = records, 0


def hidden_batches(fetched: Fetched, found: Sequence[Batch]) -> list[bool]:
    """Tell which batches of a fetch hold no committed record of a user.

    Raises: CorruptBatch.
    """
    begins = deque(sorted(fetched.aborted, key=lambda each: each[1]))
    aborted: set[int] = set()
    hidden = []
    for batch in found:
        while begins and begins[0][1] < batch.next_offset:
            aborted.add(begins.popleft()[0])
        if batch.is_control and is_abort(fetched.records, batch):
            aborted.discard(batch.producer)
        hidden.append(batch.is_control or (batch.is_transactional and batch.producer in aborted))
    return hidden


def between(records: Records, first: int, stop: int | None) -> Records:
    """Return the records from offset `first` on, and before `stop`."""
    offsets = records.offsets.to_numpy()
    begin = int(np.searchsorted(offsets, first))
    end = len(offsets) if stop is None else int(np.searchsorted(offsets, stop))
    return sliced(records, begin, end - begin) if (begin, end) != (0, len(offsets)) else records


def sliced(records: Records, first: int, count: int) -> Records:
    """Return some of the records."""
    count = max(0, count)
    headers = records.headers
    return Records(
        records.offsets.slice(first, count),
        records.timestamps.slice(first, count),
        records.keys.slice(first, count),
        records.values.slice(first, count),
        None if headers is None else headers.slice(first, count),
    )
