"""Handles of in-flight data: where the records that lay in a channel at a checkpoint's cut are stored.

Records are addressed by their position in the channel, so a handle can name part of what a file holds: a buffer that an earlier
checkpoint persisted is named again, not written again, and what is half replayed is named from where it stands.

Source: FLIP-76, "Checkpoint Metadata" (ChannelStateHandle). Deviation: one file per worker and checkpoint, and ranges within blobs.
"""

from __future__ import annotations

import msgspec


class BufferHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records stored as an Arrow IPC stream of `length` bytes at `offset`; `checksum` is their xxh3-64 in hex.

    Attributes:
        path: relative to the job's checkpoint folder.
        blob_rows: records in the whole blob.
        start: first record of the blob that is meant.
        rows: how many records, counted before the filters.
        filters: (skip, parallelism, consumer), one a rescale, in order: without the first `skip` records, only those that the edge's
            partitioner sends to that consumer at that parallelism.
        skip: so many of the records that pass all filters have been consumed already.
        inflated: length of the stream if the blob is an LZ4 frame around it; 0: it is the stream.
    """

    path: str
    offset: int
    length: int
    checksum: str
    blob_rows: int
    start: int
    rows: int
    filters: list[tuple[int, int, int]] = []
    skip: int = 0
    inflated: int = 0


class ChannelStateHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In-flight data of one channel, on one side of it.

    Attributes:
        side: "input": received and not consumed at the receiver's cut; "output": overtaken in the sender's queue; "replay": of a channel
            of the attempt before, not yet replayed.
        first: position of the first record; for "replay" the generation: what is of a lower one is older and is replayed before.
        buffers: in order, without gaps.
        ended: the end of input follows them, in flight too.
        watermarks: (records of this handle before it, counted before the filters; event time in nanoseconds since 1970), in order.
    """

    edge: int
    producer: int
    consumer: int
    side: str
    first: int
    buffers: list[BufferHandle]
    ended: bool
    watermarks: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        """Position after the last record."""
        return self.first + sum(buffer.rows for buffer in self.buffers)
