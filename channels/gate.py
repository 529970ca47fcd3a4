"""An input gate: the consumer's side of all channels of one subtask.

The gate queues arriving records, hands them out channel by channel, and gives credit back when
records are *committed* (`credit.py`). A piece of work takes at most half of what the windows hold,
so that the other half is on its way meanwhile. Records that were handed out to running work stay
the channel's own until `commit`: `committed` is the position that a cut taken now would name. A
blocked channel (alignment) hands out no record, and goes on receiving within its credit. Records of
a channel may lie on local disk for a time (`spilled.py`); `inflight/spill.py` decides which.

Event time of the subtask is the lowest of the channels' watermarks. A channel that has ended does
not hold event time back, nor does an idle channel, until records or a watermark come again.

The channels of a back-edge count neither for event time nor for idleness: a loop would wait for
itself. For the same reason their end of input cannot come before the loop's head has ended: others
find out that the loop is empty (`end_loop`).

A back-edge accepts whatever comes, since credit for it is given back on *arrival*: if the end of a
loop had to wait for the loop's head, and the head for room behind it, neither would ever go on. So
the credit of back-edges bounds nothing. *Admission* does: while as much as the windows of the
back-edges waits there, the gate hands out no record of an entry.

Source: ABS (Carbone et al. 2015), Algorithm 1, lines 9 and 15 (block, unblock); FLIP-76 for the
positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from .buffer import Buffer, ChannelId
from .credit import Credit, Window
from .events import MAX_WATERMARK, MIN_WATERMARK, Barrier, ChannelEvent, EndOfInput, Watermark
from .spilled import Records, RunFile, Spilled, with_spilled
from .subpartition import QueuedEvent, merge, watermarks_among

#: A piece of so many bytes is not cut: it holds back little credit.
_PIECE_BYTES_MIN: Final = 64 << 10
#: More bytes than any piece of work takes.
NO_LIMIT: Final = 1 << 62


class ChannelViolation(AssertionError):
    """A peer broke the channel's protocol, and the attempt must fail.

    The peer left a gap, repeated data, or sent data beyond credit or after the end.
    """


@dataclass(frozen=True, slots=True)
class GateInput:
    """Records of one channel, handed out to be worked on.

    Attributes:
        port: the operator's input port.
        buffer: the records; parts in order.
    """

    channel: ChannelId
    port: int
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class BarrierPlace:
    """A barrier's place on arrival, or when the barrier was taken out of the queue.

    Attributes:
        position: of the barrier.
        ended: the end of input came before the barrier.
        watermarks: (position, event time in nanoseconds) still queued before the barrier, in order.
    """

    position: int
    ended: bool
    watermarks: tuple[tuple[int, int], ...]


class InputChannel:
    """One channel's queue at its consumer.

    `committed <= taken <= arrived`: positions after the records that were worked on, handed out,
    and received.
    """

    def __init__(
        self,
        channel: ChannelId,
        port: int,
        *,
        position: int,
        ended: bool,
        window: Window,
        watermark_ns: int = MIN_WATERMARK,
        idle: bool = False,
        feedback: bool = False,
    ) -> None:
        self.channel = channel
        self.port = port
        #: Of the back-edge of a loop.
        self.feedback = feedback
        self.committed = position
        self.taken = position
        self.arrived = position
        self.ended = ended
        self.blocked = False
        self.queue: deque[Records | QueuedEvent] = deque()
        self.queued_bytes = 0
        #: Of these on local disk.
        self.spilled_bytes = 0
        self.credit = Credit(window)
        #: The end of input has come in, though perhaps it still stands behind records.
        self.end_arrived = ended
        #: Handed out and not committed.
        self.given: Buffer | None = None
        #: (position, event time) of watermarks among the records handed out.
        self.passed: tuple[tuple[int, int], ...] = ()
        #: Barriers in the queue.
        self.barriers = 0
        #: The newest watermark that was reached, and whether the channel has been idle since.
        self.watermark_ns = watermark_ns
        self.idle = idle

    def buffer_arrived(self, buffer: Buffer) -> None:
        self._expect(buffer.first == self.arrived, f"records from {buffer.first}")
        self._expect(not self.end_arrived, "records after the end of input")
        credit = self.credit
        self._expect(
            credit.received_bytes < credit.limit_bytes, "records beyond the granted credit"
        )
        self.arrived = buffer.end
        credit.received_bytes += buffer.size_bytes
        self.queued_bytes += buffer.size_bytes
        self.queue.append(buffer)

    def event_arrived(self, position: int, event: ChannelEvent) -> None:
        self._expect(position == self.arrived, f"{type(event).__name__} at {position}")
        if not isinstance(event, Barrier):
            self._expect(not self.end_arrived, f"{type(event).__name__} after the end of input")
            self.end_arrived = isinstance(event, EndOfInput)
        if isinstance(event, Watermark) and self.queue:
            last = self.queue[-1]
            if isinstance(last, QueuedEvent) and isinstance(last.event, Watermark):
                self.queue.pop()
        self.barriers += isinstance(event, Barrier)
        self.queue.append(QueuedEvent(position, event))

    def reached(self, watermark: Watermark) -> None:
        """The watermark is at the head, and all earlier records are committed."""
        self.watermark_ns = max(self.watermark_ns, watermark.time_ns)
        self.idle = watermark.idle

    def overtaken_by(self, position: int) -> BarrierPlace:
        """A priority barrier came in. It must sit where the data ends so far, and is not queued."""
        self._expect(position == self.arrived, f"a priority barrier at {position}")
        return BarrierPlace(position, self.end_arrived, self.queued_watermarks)

    @property
    def queued_watermarks(self) -> tuple[tuple[int, int], ...]:
        """(position, event time in nanoseconds) of watermarks that arrived and were not reached."""
        return self.passed + watermarks_among(self.queue)

    def captured(self, end: int) -> tuple[Records, ...]:
        """The records `[committed, end)`, handed out or queued: in flight if a cut is taken now."""
        run: list[Records] = [] if self.given is None else [self.given]
        run += [item for item in self.queue if not isinstance(item, QueuedEvent)]
        inside: list[Records] = []
        for buffer in run:
            if buffer.end <= end:
                inside.append(buffer)
            elif buffer.first < end:
                inside.append(buffer.split(end - buffer.first)[0])
        return tuple(inside)

    def remove_barrier(self, checkpoint: int) -> BarrierPlace | None:
        """Take the checkpoint's barrier out of the queue; None: the queue holds no such barrier."""
        before: list[Records | QueuedEvent] = []
        ended = self.ended
        for place, item in enumerate(self.queue):
            event = item.event if isinstance(item, QueuedEvent) else None
            if isinstance(event, Barrier) and event.checkpoint == checkpoint:
                del self.queue[place]
                self.barriers -= 1
                assert isinstance(item, QueuedEvent), "it holds the barrier"
                watermarks = self.passed + watermarks_among(before)
                return BarrierPlace(item.position, ended, watermarks)
            ended = ended or isinstance(event, EndOfInput)
            before.append(item)
        return None

    def next_event(self) -> ChannelEvent | None:
        """Remove and return the event at the head; None: the head is no event."""
        head = self.queue[0] if self.queue else None
        if not isinstance(head, QueuedEvent):
            return None
        self.queue.popleft()
        self.barriers -= isinstance(head.event, Barrier)
        return head.event

    def take(
        self, rows_max: int, bytes_max: int = NO_LIMIT, *, past_watermarks: bool = False
    ) -> Buffer:
        """Hand out up to `rows_max` records from the head, which must be a buffer.

        `bytes_max`: soft by one record. `past_watermarks`: watermarks among the records are reached
        when the records are committed.
        """
        run: list[Buffer] = []
        rows = size_bytes = 0
        while self.queue and rows < rows_max and size_bytes < bytes_max:
            head = self.queue[0]
            if isinstance(head, Spilled):
                break
            if isinstance(head, QueuedEvent):
                if not (past_watermarks and self._is_passed(head)):
                    break
                self.passed += watermarks_among([self.queue.popleft()])
                continue
            self.queue.popleft()
            fitting = min(rows_max - rows, _rows_in(head, bytes_max - size_bytes))
            if head.rows > fitting:
                head, rest = head.split(fitting)
                self.queue.appendleft(rest)
            run.append(head)
            rows += head.rows
            size_bytes += head.size_bytes
        taken = merge(run)
        assert taken.first == self.taken, f"{self.channel}: took {taken.first} at {self.taken}"
        self.taken = taken.end
        self.given = taken
        self.idle = False
        self.queued_bytes -= taken.size_bytes
        return taken

    def accepted(self) -> int | None:
        """Records came in over a back-edge; return a limit that the producer needs."""
        return self.credit.arrived() if self.feedback else None

    def commit(self, buffer: Buffer) -> None:
        """The handed-out buffer was worked on."""
        assert buffer.first == self.committed, f"{self.channel}: committed {buffer.first}"
        self.committed = buffer.end
        self.given = None
        if self.passed:
            self.watermark_ns = max(self.watermark_ns, self.passed[-1][1])
            self.passed = ()

    @property
    def rows_at_hand(self) -> int:
        """Number of records that could be handed out one after the other without a read."""
        if not self.spilled_bytes:
            return self.arrived - self.taken
        found = next(item for item in self.queue if isinstance(item, Spilled))
        return found.first - self.taken

    def spill(self, file: RunFile, first: int, end: int) -> None:
        """The queued records among `[first, end)` lie in `file` from now on, in place of memory."""
        queue = with_spilled(self.queue, file, first, end)
        before, self.queue = self.spilled_bytes, deque(queue)
        self.spilled_bytes = sum(item.size_bytes for item in queue if isinstance(item, Spilled))
        assert self.spilled_bytes > before, f"{self.channel}: nothing of {first}..{end} is queued"

    def load(self, file: RunFile, run: pa.Table) -> None:
        """The records of `file`, all in `run`, are in memory again."""
        for place, item in enumerate(self.queue):
            if isinstance(item, Spilled) and item.file is file:
                self.queue[place] = item.loaded(run)
                self.spilled_bytes -= item.size_bytes

    def extend(self) -> int | None:
        """Permit another window if all credit is used up; return the new limit for the producer."""
        return None if self.end_arrived else self.credit.extended()

    def _is_passed(self, head: QueuedEvent) -> bool:
        """The event is a watermark with records behind it."""
        behind = self.queue[1] if len(self.queue) > 1 else None
        return isinstance(head.event, Watermark) and isinstance(behind, Buffer)

    def check(self) -> None:
        position = self.taken
        for item in self.queue:
            if isinstance(item, QueuedEvent):
                assert item.position == position, f"{self.channel}: {item} not at {position}"
            else:
                assert item.first == position, f"{self.channel}: gap at {position}"
                position = item.end
        spilled_bytes = sum(item.size_bytes for item in self.queue if isinstance(item, Spilled))
        assert spilled_bytes == self.spilled_bytes, f"{self.channel}: {self.spilled_bytes} on disk"
        assert position == self.arrived, f"{self.channel}: queue ends at {position}"
        barriers = sum(
            isinstance(i, QueuedEvent) and isinstance(i.event, Barrier) for i in self.queue
        )
        assert self.barriers == barriers, f"{self.channel}: {barriers} barriers in the queue"
        assert self.committed <= self.taken, f"{self.channel}: committed beyond taken"
        credit = self.credit
        assert credit.consumed_bytes <= credit.returned_bytes, f"{self.channel}: consumed too much"
        assert credit.returned_bytes <= credit.received_bytes, f"{self.channel}: returned too much"

    def _expect(self, condition: bool, what: str) -> None:
        if not condition:
            raise ChannelViolation(f"channel {self.channel} at position {self.arrived}: {what}")


class Gate:
    """All input channels of one subtask, in the order in which they were given."""

    def __init__(self, channels: Iterable[InputChannel]) -> None:
        self.channels: dict[ChannelId, InputChannel] = {c.channel: c for c in channels}
        #: Channels in the order in which they are offered next; rotated so that none starves.
        self._turn: deque[InputChannel] = deque(self.channels.values())
        self._entries = [c for c in self.channels.values() if not c.feedback]
        self._feedback = [c for c in self.channels.values() if c.feedback]
        #: Nothing comes over back-edges any more; so it is where there are none.
        self._loop_ended = not self._feedback
        #: Ports that hand out no record: older records of the port are being replayed.
        self.held_ports: frozenset[int] = frozenset()
        #: A call of the user's function is worth so many records; 0: of no matter.
        self.rows_worth = 0
        #: So many records are worked on so quickly that a smaller piece is all overhead.
        self.rows_quick = 0
        #: Credit may be given back for records that are not consumed.
        self.spills = False

    def open(self, *, held: bool = False) -> list[tuple[ChannelId, int]]:
        """Give channels their first credit; return (channel, limit in bytes) of each.

        `held`: also to channels of held ports. Back-edges are opened at once: what is replayed
        goes round, too.
        """
        return [
            (c.channel, c.credit.opened())
            for c in self.channels.values()
            if c.credit.limit_bytes == 0
            and not c.end_arrived
            and (held or c.feedback or c.port not in self.held_ports)
        ]

    def next_event(self) -> tuple[InputChannel, ChannelEvent] | None:
        """Remove and return the first event at the head of a channel that is not blocked."""
        for channel in self.channels.values():
            if not channel.blocked and channel.queue and channel.port not in self.held_ports:
                event = channel.next_event()
                if event is not None:
                    return channel, event
        return None

    def next_input(self, rows_max: int, now_ns: int = 0) -> tuple[GateInput, ...]:
        """Hand out up to `rows_max` records of the port whose turn it is.

        At most one run a channel, the next channel in turn first; none when no channel has records,
        or only entries of a loop that holds enough.
        """
        admits = self.admits
        given: list[GateInput] = []
        bytes_max = NO_LIMIT
        passed_over: int | None = None
        begin_next = 0
        for place, channel in enumerate(self._turn):
            if channel.blocked or not channel.queue or not isinstance(channel.queue[0], Buffer):
                continue
            if channel.port in self.held_ports or not (admits or channel.feedback):
                continue
            if given and channel.port != given[0].port:
                # It begins next time, or a port that never fills a piece of work would starve it.
                passed_over = place if passed_over is None else passed_over
                continue
            if not given:
                bytes_max = self._piece_bytes(channel)
            taken = channel.take(rows_max, bytes_max)
            channel.credit.window.begun(now_ns)
            given.append(GateInput(channel.channel, channel.port, taken))
            rows_max -= taken.rows
            bytes_max -= taken.size_bytes
            begin_next = place + 1
            if rows_max <= 0 or bytes_max <= 0:
                break
        self._turn.rotate(-(begin_next if passed_over is None else passed_over))
        return tuple(given)

    @property
    def admits(self) -> bool:
        """Records of entries may be handed out: less waits on back-edges than their windows hold.

        A back-edge that alignment blocks is left out: the barriers that it waits for may stand
        behind records of entries.
        """
        waiting_bytes = window_bytes = 0
        for channel in self._feedback:
            if not channel.blocked:
                waiting_bytes += channel.queued_bytes
                window_bytes += channel.credit.window.size_bytes
        return not waiting_bytes or waiting_bytes < window_bytes

    def _piece_bytes(self, first: InputChannel) -> int:
        """Half of the windows of the port of `first`, or all if that makes too small a piece."""
        if self.rows_worth:
            return NO_LIMIT
        ends = [c.credit for c in self.channels.values() if c.port == first.port]
        half_bytes = sum([credit.window.size_bytes for credit in ends]) // 2
        head = first.queue[0]
        assert isinstance(head, Buffer), "an event is no input"
        return max(half_bytes, _PIECE_BYTES_MIN, self.rows_quick * head.size_bytes // head.rows)

    def ready(self) -> list[InputChannel]:
        """The channels with a record that may be handed out."""
        return [
            channel
            for channel in self._turn
            if channel.queue
            and not channel.blocked
            and channel.port not in self.held_ports
            and isinstance(channel.queue[0], Buffer)
        ]

    def next_batch(self, port: int, rows_max: int, now_ns: int = 0) -> tuple[GateInput, ...]:
        """Hand out up to `rows_max` records of a port, past watermarks.

        As `next_input`: at most one run a channel, the next channel in turn first.
        """
        given: list[GateInput] = []
        for channel in self.ready():
            if channel.port != port or rows_max <= 0:
                continue
            taken = channel.take(rows_max, past_watermarks=True)
            channel.credit.window.begun(now_ns)
            given.append(GateInput(channel.channel, channel.port, taken))
            rows_max -= taken.rows
        if given:
            last = self._turn.index(self.channels[given[-1].channel])
            self._turn.rotate(-(last + 1))
        return tuple(given)

    def commit(self, given: Sequence[GateInput], now_ns: int = 0) -> list[tuple[ChannelId, int]]:
        """Commit work on `given`; return (channel, new credit limit in bytes) where one is due."""
        channels = [self.channels[one.channel] for one in given]
        for channel, one in zip(channels, given, strict=True):
            channel.commit(one.buffer)
        left_bytes = self.queued_bytes
        # What takes no room of the windows says nothing about their size.
        counts_early = self.spills or self._feedback
        within_bytes = max(0, left_bytes - self.early_bytes) if counts_early else left_bytes
        granted: list[tuple[ChannelId, int]] = []
        for channel, one in zip(channels, given, strict=True):
            credit, buffer = channel.credit, one.buffer
            credit.window.drained(
                buffer.size_bytes,
                now_ns,
                left_bytes=within_bytes // len(self.channels),
                starved=left_bytes == 0 and credit.is_spent and not channel.barriers,
                least_bytes=self._bytes_worth(buffer),
            )
            limit_bytes = credit.consumed(buffer.size_bytes)
            if limit_bytes is not None:
                granted.append((channel.channel, limit_bytes))
        return granted

    def _bytes_worth(self, buffer: Buffer) -> int:
        """A channel's part of two calls that are worth their fixed cost: one runs, one waits."""
        rows = 2 * self.rows_worth // len(self.channels)
        return rows * buffer.size_bytes // buffer.rows

    @property
    def ended(self) -> bool:
        """Every channel has delivered its end of input, and no record is left to replay before.

        Back-edges end with their loop.
        """
        if self.held_ports or not self._loop_ended:
            return False
        # Asked before every piece of work, and `all` takes twice as long.
        for channel in self._entries:  # noqa: SIM110
            if not channel.ended:
                return False
        return True

    def end_loop(self) -> None:
        """The loop is empty, and its entries have ended: nothing comes over back-edges any more."""
        for channel in self.channels.values():
            assert channel.feedback or channel.ended, f"{channel.channel} enters a loop that ended"
            assert channel.committed == channel.arrived, f"{channel.channel}: records in the loop"
        assert not self.held_ports, "records of the loop are left to replay"
        self._loop_ended = True

    @property
    def watermark_ns(self) -> int:
        """Event time: the lowest watermark of the channels that are neither ended nor idle.

        All others idle: their highest watermark, so that the last channel to fall idle does not
        hold event time back. All ended: the same while a loop goes on, then the highest of times.
        """
        open_ = self._open()
        if not open_:
            newest = max(channel.watermark_ns for channel in self._entries)
            return MAX_WATERMARK if self._loop_ended else newest
        told = [channel.watermark_ns for channel in open_ if not channel.idle]
        return min(told) if told else max(channel.watermark_ns for channel in open_)

    @property
    def idle(self) -> bool:
        """Every channel is idle or has ended, and not all have ended."""
        open_ = self._open()
        return bool(open_) and all(channel.idle for channel in open_)

    def _open(self) -> list[InputChannel]:
        """Channels that have not ended; a restored end waits for the replay of its port."""
        return [c for c in self._entries if not c.ended or c.port in self.held_ports]

    def check(self) -> None:
        """Assert every invariant."""
        for channel in self.channels.values():
            channel.check()

    @property
    def queued_bytes(self) -> int:
        """Bytes that arrived and were not handed out."""
        return sum([channel.queued_bytes for channel in self.channels.values()])

    @property
    def early_bytes(self) -> int:
        """See `Credit`."""
        return sum([channel.credit.early_bytes for channel in self.channels.values()])

    @property
    def window_bytes(self) -> int:
        """The credit windows of all channels together."""
        return sum([channel.credit.window.size_bytes for channel in self.channels.values()])

    def edges(self) -> dict[int, tuple[int, int, int]]:
        """Return {edge: (bytes that wait, its credit windows, rows not committed)}."""
        found: dict[int, tuple[int, int, int]] = {}
        for id, channel in self.channels.items():
            queued_bytes, window_bytes, rows = found.get(id.edge, (0, 0, 0))
            found[id.edge] = (
                queued_bytes + channel.queued_bytes,
                window_bytes + channel.credit.window.size_bytes,
                rows + channel.arrived - channel.committed,
            )
        return found

    def describe(self) -> str:
        """The whole state as stable text, a line per channel."""
        return "\n".join(
            f"{c.channel} port={c.port} committed={c.committed} taken={c.taken} arrived={c.arrived}"
            f"{' blocked' if c.blocked else ''}{' ended' if c.ended else ''} queue={len(c.queue)}"
            for c in self.channels.values()
        )


def _rows_in(buffer: Buffer, size_bytes: int) -> int:
    """How many of its records come to `size_bytes`, at least one."""
    if buffer.size_bytes <= size_bytes:
        return buffer.rows
    return max(1, buffer.rows * size_bytes // buffer.size_bytes)
