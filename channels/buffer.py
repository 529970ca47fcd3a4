"""Buffers: record batches in transit, addressed by record position.

A channel counts records. A buffer covers the positions `[first, first + rows)` of its channel, and
an event sits *at* a position, between two records. Positions survive slicing and merging. So a cut
can be checked (in-flight data is exactly `[received, sent)`), and a subpartition may merge small
slices silently.

Source: FLIP-76 addresses buffers by sequence number. Deviation: positions count records, because a
rescale splits batches at record boundaries, and numbers of buffers would not survive a split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa


class ChannelId(NamedTuple):
    """Producer subtask to consumer subtask on an edge. Sorts by edge, producer, consumer."""

    edge: int
    producer: int
    consumer: int

    def __str__(self) -> str:
        return f"e{self.edge}:{self.producer}>{self.consumer}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A run of records of a channel, in neighbouring record batches.

    Attributes:
        first: position of the first record.
        rows: number of records, at least one; the sum of the parts' rows.
        size_bytes: charge to the credit account; at least a byte a record, equal at both ends of
            the channel.
        parts: the batches, in order, all of the edge's schema.
    """

    first: int
    rows: int
    size_bytes: int
    parts: tuple[pa.RecordBatch, ...]

    @property
    def end(self) -> int:
        """Position after the last record."""
        return self.first + self.rows

    @staticmethod
    def of(first: int, batch: pa.RecordBatch) -> Buffer:
        """Wrap one batch of at least one row."""
        assert batch.num_rows > 0, "a buffer holds at least one record"
        return Buffer(first, batch.num_rows, max(batch.num_rows, batch.nbytes), (batch,))

    def split(self, rows: int) -> tuple[Buffer, Buffer]:
        """Cut after `rows` records (0 < rows < self.rows) without copying.

        The sizes of the halves add up to the size of the whole: no credit is made or lost.
        """
        assert 0 < rows < self.rows, f"cannot cut {self.rows} rows at {rows}"
        left: list[pa.RecordBatch] = []
        right: list[pa.RecordBatch] = []
        missing = rows
        for part in self.parts:
            if missing >= part.num_rows:
                left.append(part)
                missing -= part.num_rows
            elif missing > 0:
                left.append(part.slice(0, missing))
                right.append(part.slice(missing))
                missing = 0
            else:
                right.append(part)
        left_bytes = self.size_bytes * rows // self.rows
        return (
            Buffer(self.first, rows, left_bytes, tuple(left)),
            Buffer(self.first + rows, self.rows - rows, self.size_bytes - left_bytes, tuple(right)),
        )
