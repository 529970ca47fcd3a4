"""A subpartition: the producer's queue of one channel.

Slices queue as the work made them; neighbours are merged, up to the buffer size, only when the
transport takes them (coalesce on drain). So a lightly loaded channel sends each slice at once, a
backpressured channel sends large buffers, and no flush timer exists. Events queue between the
records; a priority event may also be put at the head, before everything queued.

Watermarks must not pass a record, but may wait: of neighbours only the newest stays, and a buffer
that is merged for sending takes records from behind a watermark, which then follows the buffer.
Otherwise each watermark would end a buffer.

Credit: the consumer raises `limit_bytes`, a running total since the attempt began. A buffer is cut
to the credit that is left, down to one record; so no more than the window and one record is on the
wire. Events need no credit.

Source: FLIP-76 (a barrier at the head of the queue), Flink's credit-based flow control. Deviation:
credit counts bytes, not buffers, because record batches differ in size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from .buffer import Buffer, ChannelId
from .credit import Window
from .events import (
    MIN_WATERMARK,
    Barrier,
    ChannelEvent,
    CheckpointMode,
    EndOfInput,
    Watermark,
)
from .spilled import Records


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """An event at its position: `position` records of the channel precede the event."""

    position: int
    event: ChannelEvent


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Queued data that a barrier passed: in-flight data of the checkpoint, in order.

    Attributes:
        ended: the barrier passed the end of input (after all records).
        watermarks: (position, event time in nanoseconds) of watermarks with a time, in order.
    """

    first: int
    buffers: tuple[Buffer, ...]
    ended: bool
    watermarks: tuple[tuple[int, int], ...] = ()


class Subpartition:
    """Queue of one channel, from `append` at the tail to `take` at the head.

    `sent` is the position of the next record to be taken, `tail` of the next record to be appended;
    `tail - sent` records are queued.
    """

    def __init__(
        self,
        channel: ChannelId,
        *,
        position: int,
        room: Window | None = None,
    ) -> None:
        """Start at `position`, without credit.

        `room`: a queue of so many bytes is full; None: no queue is.
        """
        assert position >= 0, f"{channel}: position {position}"
        self.channel = channel
        self.sent = position
        self.tail = position
        self.queued_bytes = 0
        self.sent_bytes = 0
        self.limit_bytes = 0
        self._room = Window(1 << 62, None) if room is None else room
        self._queue: deque[Buffer | QueuedEvent] = deque()

    def append(self, batch: pa.RecordBatch, size_bytes: int, now_ns: int = 0) -> Buffer:
        """Queue a batch of at least one row, and return the queued buffer.

        Credit is charged `size_bytes`, at least a byte a row.
        """
        assert batch.num_rows > 0, f"{self.channel}: an empty buffer"
        size_bytes = max(size_bytes, batch.num_rows)
        buffer = Buffer(self.tail, batch.num_rows, size_bytes, (batch,))
        self._queue.append(buffer)
        self._room.begun(now_ns)
        self.tail = buffer.end
        self.queued_bytes += buffer.size_bytes
        return buffer

    def append_event(self, event: ChannelEvent) -> None:
        """Queue an event at the tail. A watermark replaces a watermark there."""
        if isinstance(event, Watermark) and self._queue and _is_watermark(self._queue[-1]):
            self._queue.pop()
        self._queue.append(QueuedEvent(self.tail, event))

    def overtake(self, barrier: Barrier) -> Overtaken:
        """Put `barrier` before everything queued but earlier barriers that overtook.

        Returns the data that the barrier passes.
        """
        ahead = 0
        while ahead < len(self._queue) and _has_overtaken(self._queue[ahead]):
            ahead += 1
        self._queue.insert(ahead, QueuedEvent(self.sent, barrier))
        return self._passed(list(self._queue)[ahead + 1 :])

    def hasten(self, checkpoint: int) -> Overtaken | None:
        """Let the queued barrier of `checkpoint` overtake all before it; None: it has left."""
        items = list(self._queue)
        for place, item in enumerate(items):
            barrier = item.event if isinstance(item, QueuedEvent) else None
            if isinstance(barrier, Barrier) and barrier.checkpoint == checkpoint:
                del self._queue[place]
                self.overtake(replace(barrier, mode=CheckpointMode.UNALIGNED))
                return self._passed(items[:place])
        return None

    def _passed(self, items: list[Buffer | QueuedEvent]) -> Overtaken:
        return Overtaken(
            self.sent,
            tuple(item for item in items if isinstance(item, Buffer)),
            any(isinstance(i, QueuedEvent) and isinstance(i.event, EndOfInput) for i in items),
            watermarks_among(items),
        )

    def grant(self, limit_bytes: int) -> None:
        """Let `limit_bytes` in total be sent since the attempt began. A lower limit is ignored."""
        self.limit_bytes = max(self.limit_bytes, limit_bytes)

    @property
    def has_room(self) -> bool:
        """New work may be done: the queue is not full, and the consumer has opened the channel.

        A consumer that has records of a checkpoint to replay has not; what was produced before
        would only add to what is in flight.
        """
        return self.queued_bytes < self._room.size_bytes and self.limit_bytes > 0

    @property
    def room_bytes(self) -> int:
        """The queue's limit, soft by the output of one piece of work."""
        return self._room.size_bytes

    @property
    def is_empty(self) -> bool:
        """Neither data nor an event is queued."""
        return not self._queue

    @property
    def has_data_due(self) -> bool:
        """`take` would take data: a buffer is at the head, and credit is left."""
        return (
            bool(self._queue)
            and self.sent_bytes < self.limit_bytes
            and isinstance(self._queue[0], Buffer)
        )

    def take(self, buffer_bytes: int, now_ns: int = 0) -> Buffer | QueuedEvent | None:
        """Take the next item for the transport; None: the queue is empty, or data waits for credit.

        Queued neighbours are merged while the sum stays within `buffer_bytes`, without a copy.
        """
        if not self._queue:
            return None
        head = self._queue[0]
        if isinstance(head, QueuedEvent):
            self._queue.popleft()
            assert head.position == self.sent, f"{self.channel}: event at {head.position}"
            return head
        if self.sent_bytes >= self.limit_bytes:
            return None
        was_full = self.queued_bytes >= self._room.size_bytes
        taken = self._take_buffer(buffer_bytes)
        left_bytes = self.queued_bytes
        # Full, and yet less than the consumer takes at once: the queue has held the work back.
        starved = was_full and left_bytes == 0 and self.sent_bytes < self.limit_bytes
        self._room.drained(taken.size_bytes, now_ns, left_bytes=left_bytes, starved=starved)
        return taken

    def _take_buffer(self, buffer_bytes: int) -> Buffer:
        run: list[Buffer] = []
        size_bytes = 0
        crossed: QueuedEvent | None = None
        self._fit_head(min(buffer_bytes, self.limit_bytes - self.sent_bytes))
        while self._queue:
            head = self._queue[0]
            if isinstance(head, QueuedEvent):
                if not isinstance(head.event, Watermark):
                    break
                crossed = head
                self._queue.popleft()
                continue
            if run and (
                size_bytes + head.size_bytes > buffer_bytes
                or self.sent_bytes + size_bytes + head.size_bytes > self.limit_bytes
            ):
                break
            self._queue.popleft()
            run.append(head)
            size_bytes += head.size_bytes
        self.sent_bytes += size_bytes
        self.queued_bytes -= size_bytes
        merged = merge(run)
        assert merged.first == self.sent, f"{self.channel}: took {merged.first}"
        self.sent = merged.end
        if crossed is not None:
            self._queue.appendleft(QueuedEvent(self.sent, crossed.event))
        return merged

    def _fit_head(self, budget_bytes: int) -> None:
        """Cut the head to the budget, if need be down to one record, without a copy."""
        head = self._queue[0]
        assert isinstance(head, Buffer), "an event needs no credit"
        if head.size_bytes > budget_bytes and head.rows > 1:
            rows = max(1, head.rows * budget_bytes // head.size_bytes)
            self._queue[0], rest = head.split(rows)
            self._queue.insert(1, rest)

    def check(self) -> None:
        """Assert every invariant."""
        position, size_bytes = self.sent, 0
        for item in self._queue:
            if isinstance(item, QueuedEvent):
                assert item.position == position, f"{self.channel}: {item} not at {position}"
            else:
                assert item.first == position, f"{self.channel}: gap at {position}"
                position = item.end
                size_bytes += item.size_bytes
        assert position == self.tail, f"{self.channel}: queue ends at {position}, not {self.tail}"
        assert size_bytes == self.queued_bytes, f"{self.channel}: {self.queued_bytes} bytes counted"

    def describe(self) -> str:
        """The whole state as stable text."""
        queue = " ".join(_describe(item) for item in self._queue)
        credit = self.limit_bytes - self.sent_bytes
        return f"{self.channel} sent={self.sent} tail={self.tail} credit={credit} [{queue}]"


def merge(run: Iterable[Buffer]) -> Buffer:
    """Join neighbouring buffers without copying (the parts lie one after the other)."""
    buffers = list(run)
    if len(buffers) == 1:
        return buffers[0]
    return Buffer(
        buffers[0].first,
        sum(buffer.rows for buffer in buffers),
        sum(buffer.size_bytes for buffer in buffers),
        tuple(part for buffer in buffers for part in buffer.parts),
    )


def watermarks_among(items: Iterable[Records | QueuedEvent]) -> tuple[tuple[int, int], ...]:
    """(position, event time) of watermarks with a time. Producers repeat that they are idle."""
    return tuple(
        (item.position, item.event.time_ns)
        for item in items
        if isinstance(item, QueuedEvent)
        and isinstance(item.event, Watermark)
        and item.event.time_ns > MIN_WATERMARK
    )


def _is_watermark(item: Buffer | QueuedEvent) -> bool:
    return isinstance(item, QueuedEvent) and isinstance(item.event, Watermark)


def _has_overtaken(item: Buffer | QueuedEvent) -> bool:
    return (
        isinstance(item, QueuedEvent)
        and isinstance(item.event, Barrier)
        and item.event.mode is CheckpointMode.UNALIGNED
    )


def _describe(item: Buffer | QueuedEvent) -> str:
    if isinstance(item, QueuedEvent):
        return f"{type(item.event).__name__}@{item.position}"
    return f"{item.first}..{item.end}"
