"""Under backpressure, metadata and the number of named files stay in proportion to the data in
flight, and few records are written anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.log import Continuous, LogLimits
from headrace.inflight.segment import SegmentBuilder
from headrace.inflight.writer import AdHoc, InflightWriter, Piece, write_buffers

KIB, MIB = 1024, 1024 * 1024
CHANNELS = [ChannelId(0, 0, consumer) for consumer in range(8)]
#: Records of 64 bytes; a buffer holds 4 KiB of them.
RECORD_BYTES, BUFFER_ROWS = 64, 64

#: The bars: metadata per MiB in flight, files named, and bytes written per byte that arrived.
METADATA_BYTES_MAX = 16 * KIB
FILES_MAX = 64
WRITTEN_MAX = 4.0


def buffer(first: int) -> Buffer:
    column = pa.array([b"x" * RECORD_BYTES] * BUFFER_ROWS, pa.binary(RECORD_BYTES))
    return Buffer.of(first, pa.record_batch({"x": column}))


@dataclass
class Backpressure:
    """Channels that fill faster than they are drained, and a checkpoint a step."""

    writer: InflightWriter
    #: Buffers that arrive and leave in each channel between two checkpoints.
    arriving: int
    leaving: int
    queued: dict[ChannelId, list[Buffer]] = field(default_factory=dict)
    tails: dict[ChannelId, int] = field(default_factory=dict)
    checkpoint: int = 0
    arrived_bytes: int = 0
    written_bytes: int = 0
    handles: list[ChannelStateHandle] = field(default_factory=list)

    def step(self) -> None:
        for at, channel in enumerate(CHANNELS):
            queue = self.queued.setdefault(channel, [])
            for _ in range(self.arriving):
                arrived = buffer(self.tails.get(channel, 0))
                self.tails[channel] = arrived.end
                self.arrived_bytes += arrived.size_bytes
                self.writer.log(channel, arrived)
                queue.append(arrived)
            del queue[: self.leaving if at else self.arriving]
            while (piece := self.writer.next_piece(dict)) is not None:
                self.writer.piece_written(piece, list(self.write_piece(piece)))
        self.take_checkpoint()

    def write_piece(self, piece: Piece) -> Iterator[ChannelStateHandle]:
        segment = SegmentBuilder()
        path = f"chk-{piece.checkpoint}/worker-0-e1-log-{piece.number}.segment"
        for channel, buffers in piece.runs:
            found = write_buffers(segment, path, buffers)
            yield ChannelStateHandle(*channel, "output", buffers[0].first, found, False)
        self.written_bytes += segment.size_bytes

    def take_checkpoint(self) -> None:
        self.checkpoint += 1
        index = self.writer.index(self.checkpoint)
        assert index is not None
        segment, self.handles = SegmentBuilder(), []
        for channel, queue in self.queued.items():
            found: list[BufferHandle] = []
            for piece in index.split(channel, queue):
                if isinstance(piece, BufferHandle):
                    found.append(piece)
                else:
                    path = f"chk-{self.checkpoint}/worker-0-e1.segment"
                    queued = [item for item in piece if isinstance(item, Buffer)]
                    found += write_buffers(segment, path, queued)
            first = queue[0].first if queue else self.tails[channel]
            self.handles.append(ChannelStateHandle(*channel, "output", first, found, False))
            assert sum(b.rows for b in found) == sum(b.rows for b in queue)
        self.written_bytes += segment.size_bytes
        self.writer.stored(self.checkpoint, self.handles)
        self.writer.confirmed(self.checkpoint)

    @property
    def inflight_bytes(self) -> int:
        return sum(b.size_bytes for queue in self.queued.values() for b in queue)

    @property
    def metadata_bytes(self) -> int:
        return len(msgspec.json.format(msgspec.json.encode(self.handles), indent=2))

    @property
    def files(self) -> set[str]:
        return {b.path for handle in self.handles for b in handle.buffers}


def log() -> Continuous:
    return Continuous(LogLimits(256 * KIB, 512 * KIB, 4 * MIB))


@pytest.mark.parametrize("writer", [AdHoc, log])
@pytest.mark.parametrize(("arriving", "leaving"), [(2, 1), (5, 4), (16, 15)])
def test_metadata_has_a_bar(writer: type[AdHoc], arriving: int, leaving: int) -> None:
    world = Backpressure(writer(), arriving, leaving)
    for _ in range(300):
        world.step()
    per_mib = world.metadata_bytes * MIB / world.inflight_bytes
    assert world.inflight_bytes >= 8 * MIB
    assert per_mib <= METADATA_BYTES_MAX
    assert len(world.files) <= FILES_MAX * world.inflight_bytes / (8 * MIB)
    assert world.written_bytes <= WRITTEN_MAX * world.arrived_bytes
