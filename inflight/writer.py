"""When in-flight data is written: the interface that a worker's driver uses, and the ad hoc way behind it.

FLIP-76 compares two ways. *Ad hoc*: records are written when a barrier has overtaken them, by the checkpoint itself. *Continuous*: every
buffer is logged as it is queued, and a checkpoint names ranges of the log (`log.py`). Behind this interface a driver does not know which one it
has. Either answers the one question of a checkpoint, which of its records are durable already, by an index of positions.

A writer lives as long as an attempt: another attempt's positions mean nothing. It belongs to the owner thread; what takes time is handed
out (`next_piece`) and comes back (`piece_written`).

Source: FLIP-76, "Proposed Changes: Persisting in-flight data".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId

from .confirmed import Confirmed
from .handle import BufferHandle, ChannelStateHandle
from .segment import SegmentBuilder, deflate, table_to_ipc
from .stored import Stored

#: Buffers are joined up to this size, so that a metadata of many small ones stays small.
_BLOB_BYTES = 1 << 20


#: In-flight data of one worker and checkpoint.
Handles = Sequence[ChannelStateHandle]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the log, to be written as one file that belongs to `checkpoint` whether it is ever taken or not.

    Attributes:
        number: from 0, tells the pieces of one attempt and worker apart.
        runs: neighbouring buffers of a channel, in order; a channel may come more than once.
    """

    checkpoint: int
    number: int
    runs: tuple[tuple[ChannelId, tuple[Buffer, ...]], ...]


class InflightWriter(Protocol):
    """What a worker's driver asks and tells about in-flight data, in its owner thread."""

    def log(self, channel: ChannelId, buffer: Buffer) -> None:
        """A buffer was queued for `channel`, or came in over it from another worker."""
        ...

    def next_piece(self) -> Piece | None:
        """What is to be written now, beside the work; ends in `piece_written`. None: nothing, or not yet."""
        ...

    def piece_written(self, piece: Piece, handles: Sequence[ChannelStateHandle]) -> None:
        """The piece is durable and `handles` name it; without any, it could not be written and counts as lost."""
        ...

    def index(self, checkpoint: int) -> Confirmed | None:
        """What `checkpoint`, all of whose cuts are taken, may name instead of writing. None: ask again when the piece under way is written."""
        ...

    def stored(self, checkpoint: int, data: Handles) -> None:
        """See `Stored`."""
        ...

    def confirmed(self, checkpoint: int) -> None:
        """See `Stored`."""
        ...

    def given_up(self, checkpoint: int) -> None:
        """See `Stored`."""
        ...

    def trim(self, floors: Mapping[ChannelId, int]) -> list[Piece]:
        """Of each channel the records before its floor are worked on, or with another worker, and no open cut holds them. Returns the
        written pieces that are to be deleted now; they are forgotten."""
        ...

    def abandon(self) -> list[Piece]:
        """The attempt is over. Returns the written pieces that no checkpoint can name any more, to be deleted."""
        ...


class AdHoc(Stored[Handles]):
    """Each checkpoint writes the records that its barrier overtook, unless they are stored already."""

    def log(self, channel: ChannelId, buffer: Buffer) -> None:
        """See `InflightWriter`: nothing is written before a barrier comes."""

    def next_piece(self) -> Piece | None:
        """See `InflightWriter`."""
        return None

    def piece_written(self, piece: Piece, handles: Sequence[ChannelStateHandle]) -> None:
        """See `InflightWriter`."""
        raise AssertionError(f"piece {piece.number} of nobody's")

    def index(self, checkpoint: int) -> Confirmed | None:
        """See `InflightWriter`."""
        return Confirmed(self.newest or ())

    def trim(self, floors: Mapping[ChannelId, int]) -> list[Piece]:
        """See `InflightWriter`."""
        return []

    def abandon(self) -> list[Piece]:
        """See `InflightWriter`."""
        return []


def write_buffers(
    segment: SegmentBuilder, path: str, buffers: Sequence[Buffer], *, compresses: bool = False
) -> list[BufferHandle]:
    """Append neighbouring buffers to `segment`, which will lie at `path` (as handles state it). Returns where, in order."""
    handles: list[BufferHandle] = []
    group: list[pa.RecordBatch] = []
    size_bytes = 0
    for buffer in buffers:
        if group and size_bytes + buffer.size_bytes > _BLOB_BYTES:
            handles.append(_write_batches(segment, path, group, compresses))
            group, size_bytes = [], 0
        group += buffer.parts
        size_bytes += buffer.size_bytes
    if group:
        handles.append(_write_batches(segment, path, group, compresses))
    return handles


def _write_batches(
    segment: SegmentBuilder, path: str, batches: Sequence[pa.RecordBatch], compresses: bool
) -> BufferHandle:
    table = pa.Table.from_batches(batches)
    parts, inflated = table_to_ipc(table), 0
    if compresses:
        parts, inflated = deflate(parts)
    blob = segment.append(*parts)
    return BufferHandle(
        path=path,
        offset=blob.offset,
        length=blob.length,
        checksum=blob.checksum,
        blob_rows=table.num_rows,
        start=0,
        rows=table.num_rows,
        inflated=inflated,
    )
