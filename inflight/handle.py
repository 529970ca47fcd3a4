"""Handles of in-flight data: where the records of a channel at a checkpoint's cut are stored.

Records are addressed by their position in the channel, so a handle can name part of a file: a
buffer of an earlier checkpoint is named again, not written again, and a half-replayed buffer is
named from the first record left.

Source: FLIP-76, "Checkpoint Metadata" (ChannelStateHandle). Deviation: one file per worker and
checkpoint, and ranges within blobs.
"""

from __future__ import annotations

import msgspec


class BufferHandle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Records in an Arrow IPC stream of `length` bytes at `offset`.

    Attributes:
        path: relative to the job's checkpoint folder.
        checksum: xxh3-64 of the bytes, in hex.
        blob_rows: records in the whole blob.
        start: the handle's first record in the blob.
        rows: number of records, counted before the filters.
        filters: (skip, parallelism, consumer), one a rescale, in order: without the first `skip`
            records, only records that the edge's partitioner sends to that consumer at that
            parallelism.
        skip: number of records, behind all filters, consumed already.
        inflated: length of the stream if the blob is an LZ4 frame around the stream; 0: the blob is
            the stream.
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


class ChannelStateHandle(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """In-flight data of a channel, on one side.

    Attributes:
        side: "input": received and not consumed at the receiver's cut; "output": overtaken in the
            sender's queue; "replay": of a channel of the attempt before, not yet replayed.
        first: position of the first record; for "replay" the generation: lower ones are older and
            replayed first.
        buffers: in order, without gaps.
        ended: the end of input follows the records, in flight too.
        watermarks: (records of this handle before the watermark, counted before the filters; event
            time in nanoseconds since 1970), in order.
        wave: of a replay after a rescale (`recovery/waves.py`): of "replay" the wave to come, of
            the other sides the wave that was under way; waves count down, 0: new records.
    """

    edge: int
    producer: int
    consumer: int
    side: str
    first: int
    buffers: list[BufferHandle]
    ended: bool
    watermarks: list[tuple[int, int]] = []
    wave: int = 0

    @property
    def end(self) -> int:
        """Position after the last record."""
        return self.first + sum(buffer.rows for buffer in self.buffers)
