"""When in-flight data is written: the interface of a worker's driver, and the ad hoc way.

FLIP-76 compares two ways. *Ad hoc*: a checkpoint writes the records overtaken by its barrier.
*Continuous*: every buffer is logged as it is queued, and a checkpoint names ranges of the log
(`log.py`). Drivers do not know the way. Either way answers the question of a checkpoint, which
records are durable already, by an index of positions.

A writer lives as long as an attempt: positions of another attempt mean nothing. The owner thread
keeps the writer. Writes take time, so they are handed out (`next_piece`) and come back
(`piece_written`).

Source: FLIP-76, "Proposed Changes: Persisting in-flight data".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId

from .confirmed import NAMED, Confirmed, NamingLimits, SharedSpace
from .handle import BufferHandle, ChannelStateHandle
from .segment import SegmentBuilder, deflate, table_to_ipc
from .stored import Stored

#: Buffers are joined up to this size, so that a metadata of many small ones stays small.
_BLOB_BYTES = 1 << 20


#: In-flight data of one worker and checkpoint.
Handles = Sequence[ChannelStateHandle]

#: By channel, the position before which records are worked on, or with another worker. None: an
#: open cut needs older records.
Floors = Callable[[], Mapping[ChannelId, int] | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the log, written as a file of `checkpoint`, taken or not.

    Attributes:
        number: from 0, tells the pieces of one attempt and worker apart.
        runs: neighbouring buffers of a channel, in order; a channel may come more than once.
    """

    checkpoint: int
    number: int
    runs: tuple[tuple[ChannelId, tuple[Buffer, ...]], ...]


class InflightWriter(Protocol):
    """The in-flight data of a worker, as the driver sees it; owner thread only."""

    def log(self, channel: ChannelId, buffer: Buffer) -> None:
        """A buffer was queued for `channel`, or came in from another worker."""
        ...

    def next_piece(self, floors: Floors) -> Piece | None:
        """Return a piece to write now, beside the work. None: there is none yet.

        `piece_written` follows. `floors` is asked only if a piece seems due.
        """
        ...

    def piece_written(self, piece: Piece, handles: Sequence[ChannelStateHandle]) -> None:
        """The piece is durable under `handles`; without any, the piece is lost."""
        ...

    def index(self, checkpoint: int) -> Confirmed | None:
        """Return the records that `checkpoint` may name instead of writing; all its cuts are taken.

        None: ask again when the piece under way is written.
        """
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
        """Forget pieces that no checkpoint will name, and return them.

        `floors`: by channel, the position before which records are worked on, or with another
        worker, and in no open cut.
        """
        ...

    def abandon(self) -> list[Piece]:
        """End the attempt: return written pieces that no checkpoint can name, to be deleted."""
        ...


class AdHoc(Stored[Handles]):
    """Each checkpoint writes the records overtaken by its barrier that are not stored yet."""

    def __init__(self, naming: NamingLimits = NAMED) -> None:
        super().__init__()
        self._space = SharedSpace(naming)

    def log(self, channel: ChannelId, buffer: Buffer) -> None:
        """See `InflightWriter`: nothing is written before a barrier comes."""

    def next_piece(self, floors: Floors) -> Piece | None:
        """See `InflightWriter`."""
        return None

    def piece_written(self, piece: Piece, handles: Sequence[ChannelStateHandle]) -> None:
        """See `InflightWriter`."""
        raise AssertionError(f"piece {piece.number} of nobody's")

    def index(self, checkpoint: int) -> Confirmed | None:
        """See `InflightWriter`."""
        return self._space.index(self.newest or ())

    def trim(self, floors: Mapping[ChannelId, int]) -> list[Piece]:
        """See `InflightWriter`."""
        return []

    def abandon(self) -> list[Piece]:
        """See `InflightWriter`."""
        return []


def write_buffers(
    segment: SegmentBuilder, path: str, buffers: Sequence[Buffer], *, compresses: bool = False
) -> list[BufferHandle]:
    """Append neighbouring buffers to `segment`. Returns their handles, in order.

    `path`: where the segment will lie, as handles state it.
    """
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
