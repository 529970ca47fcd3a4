"""Buffers: record batches in transit, addressed by record position.

A channel counts records. A buffer covers the positions `[first, first + rows)` of its channel, and an
event sits *at* a position, that is, between two records. Positions survive slicing and merging, which is
what makes a cut checkable (in-flight data is exactly `[received, sent)`) and what lets a subpartition
merge small slices without telling anybody.

Source: FLIP-76 addresses buffers by sequence number; we deviate and count records, because a rescale
splits batches at record boundaries and a sequence of buffers would not survive that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa


class ChannelId(NamedTuple):
    """One producer subtask to one consumer subtask on one edge. Sorts by edge, producer, consumer."""

    edge: int
    producer: int
    consumer: int

    def __str__(self) -> str:
        return f"e{self.edge}:{self.producer}>{self.consumer}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A run of records of one channel, in one or more record batches that lie next to each other.

    Attributes:
        first: position of the first record.
        rows: number of records, at least one; the sum of the parts' rows.
        size_bytes: what the credit account is charged; at least one a record, and the same at both ends of the channel.
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

        The sizes of the halves add up to the size of the whole, so that credit is neither made nor lost.
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
