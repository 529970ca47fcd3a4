"""In-flight data of a restored checkpoint reaches its consumer before new data.

The machine asks for stored buffers a few at a time (`wanted`), hands their records out like a gate
does, and can name the records that are left at any moment: a checkpoint during recovery names them
and writes nothing. Order within an old channel is kept; among old channels of one attempt it is
free. Records that an earlier attempt had left to replay are of an earlier generation and come
before all data in flight behind them, or a key's older records could fall behind newer records.

After a rescale that deals out old channels, all subtasks of the job replay in *waves*
(`recovery/waves.py`), which count down. Records of a later wave wait, and their port goes on with
what the present wave sends there. Records of wave 0 come with the new records, and hold their port
from the start.

Watermarks are replayed in place, as watermarks of the channel with the same ends. Restoring at
another parallelism removes them (`recovery/redistribution.py`): the channel is gone, and
filtered records have no place any more.

Memory is bounded by the read-ahead, however much lay in flight and however many old channels a
consumer has inherited: buffers are ordered one after the other, at most two an old channel, until
the buffers ordered or read and not worked on come to `ahead_bytes_max`.

Source: FLIP-76, recovery; deviation: the consumer reads the sender's part too, so that order
survives a rescale and producers start at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from headrace.channels.buffer import ChannelId

from .handle import BufferHandle, ChannelStateHandle

_READ_AHEAD = 2
#: Stored bytes that are read ahead in all; one buffer may go beyond it.
AHEAD_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """An order to read a stored buffer; its filters mean the partitioner of `edge`."""

    number: int
    edge: int
    handle: BufferHandle


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """Records handed out to be worked on, of the buffer of order `number`."""

    number: int
    port: int
    parts: tuple[pa.RecordBatch, ...]
    rows: int


@dataclass(slots=True)
class _Stored:
    """One stored buffer. `batch`: rows that passed the filters, from `skip` on; None: unread."""

    number: int
    handle: BufferHandle
    ordered: bool = False
    batch: pa.RecordBatch | None = None
    #: Rows handed out and committed, of `batch`.
    taken: int = 0
    committed: int = 0


@dataclass(slots=True, eq=False)
class _OldChannel:
    port: int
    wave: int
    generation: int
    source: ChannelStateHandle
    stored: deque[_Stored] = field(default_factory=deque)
    #: (records before it, event time): counted before the filters, from the first record of this
    #: replay.
    watermarks: deque[tuple[int, int]] = field(default_factory=deque)
    #: So many of those records are in buffers that are done with, or in any buffer.
    done: int = 0
    total: int = 0

    @property
    def age(self) -> tuple[int, int]:
        """The lowest is the oldest."""
        return -self.wave, self.generation

    def add(self, handle: ChannelStateHandle, stored: Iterable[_Stored]) -> None:
        """Append the buffers and watermarks of `handle`."""
        self.watermarks.extend((self.total + before, time) for before, time in handle.watermarks)
        self.stored.extend(stored)
        self.total += sum(buffer.rows for buffer in handle.buffers)

    @property
    def committed(self) -> int:
        """Number of records before the first uncommitted record."""
        within = self.stored[0].handle.skip + self.stored[0].committed if self.stored else 0
        return self.done + within

    def rows_to_watermark(self, rows_max: int) -> int:
        """At most `rows_max`, and no record from behind the next watermark."""
        if not self.watermarks:
            return rows_max
        return min(rows_max, self.watermarks[0][0] - self.committed)


class Replay:
    """Records that one consumer subtask has to replay.

    Args:
        handles: as `merge_sides` orders them; edges in terms of the present plan.
        ports: {edge: input port}.
        wave: the wave that begins; earlier waves are over.
        ahead_bytes_max: limit of the read-ahead, soft by one buffer.
    """

    def __init__(
        self,
        handles: Iterable[ChannelStateHandle],
        ports: dict[int, int],
        *,
        wave: int = 0,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        self._wave = wave
        self._ahead_bytes_max = ahead_bytes_max
        #: Stored size of what is ordered and not done with.
        self.ahead_bytes = 0
        self._channels: list[_OldChannel] = []
        self._by_number: dict[int, _Stored] = {}
        #: The old channel that records were handed out of, and how many.
        self._given: tuple[_OldChannel, int] | None = None
        #: Watermarks that were replayed and not yet asked for.
        self._reached: list[tuple[ChannelId, int]] = []
        by_channel: dict[tuple[int, int, int, int, int], _OldChannel] = {}
        ordered = list(handles)
        newest = 1 + max((h.first for h in ordered if h.side == "replay"), default=-1)
        for handle in ordered:
            generation = handle.first if handle.side == "replay" else newest
            key = (handle.wave, generation, handle.edge, handle.producer, handle.consumer)
            if key not in by_channel:
                by_channel[key] = _OldChannel(ports[handle.edge], handle.wave, generation, handle)
                self._channels.append(by_channel[key])
            first = len(self._by_number)
            stored = [_Stored(first + n, buffer) for n, buffer in enumerate(handle.buffers)]
            self._by_number.update({s.number: s for s in stored})
            by_channel[key].add(handle, stored)
        self._drop_done()

    @property
    def pending_ports(self) -> frozenset[int]:
        """Ports with records left to replay or commit; their channels have to wait.

        Channels bring records of the present wave, which go before replays of later ones.
        """
        held = [c for c in self._channels if c.wave >= self._wave or c.wave == 0]
        return frozenset(channel.port for channel in held)

    def wave_began(self, wave: int) -> None:
        """The job has begun a later wave."""
        assert wave < self._wave, f"wave {wave} after wave {self._wave}"
        self._wave = wave
        self._drop_done()

    def wanted(self) -> list[ReadOrder]:
        """Return the buffers to read now; each is ordered once."""
        orders: list[ReadOrder] = []
        for channel in self._oldest():
            for stored in islice(channel.stored, _READ_AHEAD):
                if not stored.ordered:
                    size_bytes = stored.handle.length
                    if self.ahead_bytes and self.ahead_bytes + size_bytes > self._ahead_bytes_max:
                        return orders
                    stored.ordered = True
                    self.ahead_bytes += size_bytes
                    orders.append(ReadOrder(stored.number, channel.source.edge, stored.handle))
        return orders

    def was_read(self, number: int, batch: pa.RecordBatch) -> None:
        """Order `number` was carried out: `batch` holds the records left, perhaps none."""
        stored = self._by_number[number]
        assert stored.ordered, f"read {number} was not ordered"
        assert stored.batch is None, f"read {number} came twice"
        stored.batch = batch
        self._drop_done()

    def next_input(self, rows_max: int) -> ReplayInput | None:
        """Hand out up to `rows_max` records of one stored buffer. None: no buffer is read yet."""
        assert self._given is None, "handed out twice"
        for channel in self._oldest():
            if not channel.stored:
                continue
            stored = channel.stored[0]
            if stored.batch is not None:
                rows = channel.rows_to_watermark(rows_max)
                rows = min(rows, stored.batch.num_rows - stored.taken)
                part = stored.batch.slice(stored.taken, rows)
                stored.taken += rows
                self._given = (channel, rows)
                return ReplayInput(stored.number, channel.port, (part,), rows)
        return None

    def commit(self) -> None:
        """The records handed out last have been worked on."""
        assert self._given is not None, "nothing was handed out"
        (channel, rows), self._given = self._given, None
        channel.stored[0].committed += rows
        # The next old channel has its turn.
        self._channels.remove(channel)
        self._channels.append(channel)
        self._drop_done()

    def watermarks(self) -> list[tuple[ChannelId, int]]:
        """Return the (channel, event time) of watermarks reached since the last call, in order."""
        reached, self._reached = self._reached, []
        return reached

    def remaining(self) -> list[ChannelStateHandle]:
        """Return the uncommitted records, as handles of side "replay"."""
        return [
            ChannelStateHandle(
                edge=channel.source.edge,
                producer=channel.source.producer,
                consumer=channel.source.consumer,
                side="replay",
                first=channel.generation,
                buffers=[_rest(stored) for stored in channel.stored],
                ended=False,
                watermarks=[(before - channel.done, time) for before, time in channel.watermarks],
                wave=channel.wave,
            )
            for channel in self._channels
        ]

    def describe(self) -> str:
        """The whole state as stable text."""
        lines = [
            f"replay e{c.source.edge}:{c.source.producer}>{c.source.consumer}"
            f" stored={len(c.stored)}"
            f" committed={c.stored[0].committed if c.stored else 0}"
            for c in self._channels
        ]
        return "\n".join(lines)

    def _oldest(self) -> list[_OldChannel]:
        """The channels that have their turn: each port's first wave and oldest generation."""
        due = [channel for channel in self._channels if channel.wave >= self._wave]
        oldest: dict[int, tuple[int, int]] = {}
        for channel in due:
            oldest[channel.port] = min(channel.age, oldest.get(channel.port, channel.age))
        return [channel for channel in due if channel.age == oldest[channel.port]]

    def _drop_done(self) -> None:
        """Let go of finished buffers, generation by generation.

        Watermarks of a generation count when the generation before is through.
        """
        before = -1
        while before != len(self._channels):
            before = len(self._channels)
            for channel in self._oldest():
                self._drop_from(channel)
            self._channels = [c for c in self._channels if c.stored or c.watermarks]

    def _drop_from(self, channel: _OldChannel) -> None:
        while channel.stored and _is_done(channel.stored[0]):
            stored = channel.stored.popleft()
            channel.done += stored.handle.rows
            self.ahead_bytes -= stored.handle.length
            del self._by_number[stored.number]
        while channel.watermarks and channel.watermarks[0][0] <= channel.committed:
            source = channel.source
            id = ChannelId(source.edge, source.producer, source.consumer)
            self._reached.append((id, channel.watermarks.popleft()[1]))


def merge_sides(handles: Sequence[ChannelStateHandle]) -> list[ChannelStateHandle]:
    """Order handles for replay: by old channel, wave, and side; older replays, then the receiver's
    part, then the sender's.
    """
    order = {"replay": 0, "input": 1, "output": 2}
    return sorted(
        handles, key=lambda h: (h.edge, h.producer, h.consumer, -h.wave, order[h.side], h.first)
    )


def _is_done(stored: _Stored) -> bool:
    return stored.batch is not None and stored.committed == stored.batch.num_rows


def _rest(stored: _Stored) -> BufferHandle:
    handle = stored.handle
    return BufferHandle(
        path=handle.path,
        offset=handle.offset,
        length=handle.length,
        checksum=handle.checksum,
        blob_rows=handle.blob_rows,
        start=handle.start,
        rows=handle.rows,
        filters=handle.filters,
        skip=handle.skip + stored.committed,
        inflated=handle.inflated,
    )
