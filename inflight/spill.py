"""Records of a subtask's input channels spill to local disk, and credit is granted on arrival.

A channel spills while alignment blocks it, so that its producer goes on and serves its other
consumers; the channels of back-edges spill always, so that the tail of a loop never waits for its
head. The queue of a channel is then a *head* in memory,
*runs* on disk and a *tail* in memory: runs are written of the tail, and read ahead when the head
runs low. Positions and order are those of the queue (`channels/gate.py`), as of any in-flight data:
events stay in the queue, and a cut names spilled records like others.

Memory: credit is granted on arrival as long as the spilling channels hold less than
`memory_bytes_max` in memory, or nothing that could be written. The tail is written from half of
that on; heads take the other half at most, or a record each. So no consumer ever has to go on
before credit is granted. A channel that spills no more gets credit when what it was granted too
early is consumed.

Disk: a run stays until its records are in memory again, or worked on, and no cut names the run
whose checkpoint this worker still has to write. A write that fails loses nothing: the records stay
in memory, their channels get no more credit, and the write is tried again. Likewise at the limit of
disk. A run that does not read back as written ends the attempt.

One write and one read are under way at a time.

Source: ABS (Carbone et al. 2015), section 5, "Implementation" (blocked channels are spilled to
disk); deviation: only what memory does not hold is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.gate import Gate, InputChannel
from headrace.channels.spilled import Records, RunFile, Spilled

#: A write that failed is tried again after this time.
RETRY_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """Bounds of one subtask, in bytes as charged to credit.

    Attributes:
        memory_bytes_max: spilling channels that hold so much in memory get no credit on arrival;
            soft by a window of each channel and a run.
        disk_bytes_max: runs take no more disk than this.
        blocked: channels spill while alignment blocks them; back-edges of loops always do.
    """

    memory_bytes_max: int
    disk_bytes_max: int
    blocked: bool = True

    @property
    def run_bytes(self) -> int:
        """Soft size of a run, by a buffer; so much is read ahead of each channel."""
        return max(1, self.memory_bytes_max // 4)


# --- orders, carried out one after the other, and their ends --------------------------------------


@dataclass(frozen=True, slots=True)
class WriteRun:
    """Write neighbouring buffers of a channel; ends in RunWritten or RunUnwritten."""

    number: int
    channel: ChannelId
    buffers: tuple[Buffer, ...]

    @property
    def first(self) -> int:
        """Position of the first record."""
        return self.buffers[0].first

    @property
    def end(self) -> int:
        """Position after the last record."""
        return self.buffers[-1].end

    @property
    def size_bytes(self) -> int:
        """As charged to credit."""
        return sum(buffer.size_bytes for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Read a whole run back and compare the checksum; ends in RunRead, or the attempt ends."""

    file: RunFile


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete a run: neither a channel nor a cut needs the run any more."""

    file: RunFile


SpillOrder = WriteRun | ReadRun | DeleteRun


@dataclass(frozen=True, slots=True)
class RunWritten:
    """The run can be read."""

    file: RunFile


@dataclass(frozen=True, slots=True)
class RunUnwritten:
    """The run could not be written, and nothing of it is left."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunRead:
    """All records of a run."""

    number: int
    records: pa.Table


SpillOutcome = RunWritten | RunUnwritten | RunRead


@dataclass(slots=True)
class _Run:
    """A run on disk, of records before `end`. `queued`: the channel's queue names the run."""

    file: RunFile
    channel: InputChannel
    end: int
    queued: bool


@dataclass(slots=True)
class Spill:
    """Runs of one subtask and attempt."""

    gate: Gate
    limits: SpillLimits
    #: Why nothing is written although memory is full, in words; empty: writes succeed.
    trouble: str = ""
    #: {number: run on disk, or being deleted}
    _runs: dict[int, _Run] = field(default_factory=dict)
    _number: int = 0
    _writing: WriteRun | None = None
    _reading: RunFile | None = None
    _retry_at_ns: int | None = None
    #: {channel: end of the newest run that was read}: no record is written twice.
    _read_ends: dict[ChannelId, int] = field(default_factory=dict)
    _at_limit: bool = False
    #: {checkpoint: runs that its cut names}, until this worker has written its part.
    _held: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.spills = True
        for channel in self.gate.channels.values():
            channel.credit.spills = True

    # --- what is due ------------------------------------------------------------------------------

    def grants(self) -> list[tuple[ChannelId, int]]:
        """Return the (channel, credit limit) due for arrived records, while memory has room."""
        spilling = [c for c in self.gate.channels.values() if self._spills(c)]
        if not spilling or self._is_full:
            return []
        open_ = [c for c in spilling if c.credit.limit_bytes and not c.end_arrived]
        limits = [(channel.channel, channel.credit.arrived()) for channel in open_]
        return [(channel, limit) for channel, limit in limits if limit is not None]

    def orders(self, now_ns: int, rows_wanted: int = 0) -> list[SpillOrder]:
        """Return what the disk is to do next, in this order.

        `rows_wanted`: so many rows of a port are worked on at once.
        """
        orders: list[SpillOrder] = [*self._deletions()]
        read = self._next_read(rows_wanted)
        if read is not None:
            self._reading = read.file
            orders.append(read)
        write = self._next_write(now_ns)
        if write is not None:
            self._writing = write
            orders.append(write)
        return orders

    def next_deadline_ns(self) -> int | None:
        """When a write that failed is tried again."""
        return self._retry_at_ns

    # --- outcomes ---------------------------------------------------------------------------------

    def written(self, file: RunFile) -> WriteRun | None:
        """The ordered run is on disk; its records need no memory.

        None: they were worked on, or their channel spills no more, and the run is of no use.
        """
        order, self._writing = self._writing, None
        assert order is not None, f"run {file.number} was not ordered"
        assert order.number == file.number, f"run {file.number} in place of {order.number}"
        self._retry_at_ns, self.trouble = None, ""
        channel = self.gate.channels[order.channel]
        is_of_use = self._spills(channel) and channel.taken < order.end
        self._runs[file.number] = _Run(file, channel, order.end, is_of_use)
        if not is_of_use:
            return None
        channel.spill(file, order.first, order.end)
        return order

    def unwritten(self, number: int, reason: str, now_ns: int) -> None:
        """The ordered run could not be written: its records stay where they are."""
        assert self._writing is not None, f"run {number} was not ordered"
        assert self._writing.number == number, f"run {number} in place of {self._writing.number}"
        self._writing = None
        self._retry_at_ns = now_ns + RETRY_NS
        self.trouble = reason

    def was_read(self, number: int, records: pa.Table) -> None:
        """The run's records are in memory again."""
        file, self._reading = self._reading, None
        assert file is not None, f"run {number} was not ordered"
        assert file.number == number, f"run {number} in place of {file.number}"
        assert records.num_rows == file.rows, f"run {number} has {records.num_rows} records"
        run = self._runs[number]
        run.channel.load(file, records)
        run.queued = False
        self._read_ends[run.channel.channel] = run.end

    def time_passed(self, now_ns: int) -> None:
        """A write that failed may be tried again."""
        if self._retry_at_ns is not None and self._retry_at_ns <= now_ns:
            self._retry_at_ns = None

    # --- cuts -------------------------------------------------------------------------------------

    def hold(self, checkpoint: int, captured: Iterable[Records]) -> None:
        """A cut names these records: their runs stay until `release`."""
        numbers = {item.file.number for item in captured if isinstance(item, Spilled)}
        if numbers:
            self._held.setdefault(checkpoint, set()).update(numbers)

    def release(self, checkpoint: int) -> None:
        """The checkpoint is written as far as this worker goes, or given up."""
        self._held.pop(checkpoint, None)

    # --- numbers ----------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory of the channels that spill or have spilled."""
        return sum(c.queued_bytes - c.spilled_bytes for c in self._members())

    @property
    def disk_bytes(self) -> int:
        """Size of all runs."""
        return sum(run.file.length for run in self._runs.values())

    @property
    def is_exceeded(self) -> bool:
        """A loop can neither write nor wait: the limit of disk is reached."""
        memory_is_full = self.memory_bytes >= self.limits.memory_bytes_max
        loops = any(channel.feedback for channel in self.gate.channels.values())
        return loops and self._at_limit and memory_is_full

    def check(self) -> None:
        """Assert every invariant."""
        queued = {
            item.file.number
            for channel in self.gate.channels.values()
            for item in channel.queue
            if isinstance(item, Spilled)
        }
        named = {number for number, run in self._runs.items() if run.queued}
        assert queued == named, f"runs {queued} are queued, and {named} are known"
        held = set().union(*self._held.values())
        assert held <= self._runs.keys(), f"runs {held} are held, and {set(self._runs)} are known"

    def describe(self) -> str:
        """The whole state as stable text; empty: nothing is spilled."""
        runs = " ".join(f"{n}{'' if r.queued else '-'}" for n, r in sorted(self._runs.items()))
        busy = f" writes={self._writing.number}" if self._writing is not None else ""
        return f"spill runs=[{runs}]{busy} trouble={self.trouble!r}" if runs or busy else ""

    # --- helpers ----------------------------------------------------------------------------------

    def _spills(self, channel: InputChannel) -> bool:
        """New records of the channel go to disk."""
        return channel.feedback or (channel.blocked and self.limits.blocked)

    def _members(self) -> list[InputChannel]:
        """Channels that spill, or have more queued than their window for having spilled."""
        return [
            channel
            for channel in self.gate.channels.values()
            if channel.spilled_bytes or channel.credit.early_bytes or self._spills(channel)
        ]

    def _deletions(self) -> list[DeleteRun]:
        held = set().union(*self._held.values())
        over = [n for n, run in self._runs.items() if not run.queued and n not in held]
        return [DeleteRun(self._runs.pop(number).file) for number in over]

    def _next_read(self, rows_wanted: int) -> ReadRun | None:
        """The channel with the least at hand goes first."""
        if self._reading is not None:
            return None
        waiting = [c for c in self.gate.channels.values() if c.spilled_bytes]
        heads = {c.channel: _head_bytes(c) for c in waiting}
        admits, held = self.gate.admits, self.gate.held_ports
        open_ = [c for c in waiting if not c.blocked and c.port not in held]
        # An entry that is not admitted waits for the back-edges, whatever it has at hand.
        ready = [c for c in open_ if admits or c.feedback]
        ready.sort(key=lambda c: heads[c.channel])
        if not ready:
            return None
        has_room = sum(heads.values()) + self.limits.run_bytes <= self.limits.memory_bytes_max // 2
        is_idle = not any(heads[c.channel] for c in ready)
        for channel in ready:
            is_low = heads[channel.channel] < self.limits.run_bytes and has_room
            if is_low or is_idle or self._at_hand(channel.port) < rows_wanted:
                first = next(item for item in channel.queue if isinstance(item, Spilled))
                return ReadRun(first.file)
        return None

    def _at_hand(self, port: int) -> int:
        channels = self.gate.channels.values()
        return sum(c.rows_at_hand for c in channels if c.port == port and not c.blocked)

    @property
    def _is_full(self) -> bool:
        """Records have to be written before more of them may come.

        Heads alone never fill memory, however large a record is: they may wait for what is to come.
        """
        if self.memory_bytes < self.limits.memory_bytes_max:
            return False
        return self._writing is not None or any(tail for _, tail in self._tails())

    def _tails(self) -> list[tuple[ChannelId, list[Buffer]]]:
        """What may be written, by channel."""
        spilling = [c for c in self.gate.channels.values() if self._spills(c)]
        head_bytes = self.limits.run_bytes // max(1, len(spilling))
        return [(c.channel, self._tail(c, head_bytes)) for c in spilling]

    def _next_write(self, now_ns: int) -> WriteRun | None:
        """The channel with the longest tail goes first."""
        memory_bytes = self.memory_bytes
        if memory_bytes <= self.limits.memory_bytes_max // 2:
            self.trouble, self._at_limit = "", False
            return None
        if self._writing is not None or self._is_waiting(now_ns):
            return None
        tails = self._tails()
        tails.sort(key=lambda tail: sum(buffer.size_bytes for buffer in tail[1]))
        if not tails or not tails[-1][1]:
            return None
        channel, tail = tails[-1]
        run = _first_bytes(tail, self.limits.run_bytes)
        order = WriteRun(self._number, channel, tuple(run))
        is_small = order.size_bytes < self.limits.run_bytes // 2
        if is_small and memory_bytes < self.limits.memory_bytes_max:
            return None
        self._at_limit = self.disk_bytes + order.size_bytes > self.limits.disk_bytes_max
        if self._at_limit:
            self.trouble = (
                f"{self.disk_bytes} bytes of disk are taken, and the limit is"
                f" {self.limits.disk_bytes_max}; raise network.spill_disk"
            )
            return None
        self._number += 1
        return order

    def _tail(self, channel: InputChannel, head_bytes: int) -> list[Buffer]:
        """The buffers behind all records that are or were on disk, or else behind a head."""
        read_end = self._read_ends.get(channel.channel, 0)
        tail: deque[Buffer] = deque()
        for item in reversed(channel.queue):
            if isinstance(item, Spilled) or (isinstance(item, Buffer) and item.first < read_end):
                return list(tail)
            if isinstance(item, Buffer):
                tail.appendleft(item)
        while tail and tail[0].size_bytes <= head_bytes:
            head_bytes -= tail.popleft().size_bytes
        return list(tail)

    def _is_waiting(self, now_ns: int) -> bool:
        return self._retry_at_ns is not None and now_ns < self._retry_at_ns


def _head_bytes(channel: InputChannel) -> int:
    """Bytes before the first record on disk."""
    found = 0
    for item in channel.queue:
        if isinstance(item, Spilled):
            break
        found += item.size_bytes if isinstance(item, Buffer) else 0
    return found


def _first_bytes(buffers: Iterable[Buffer], size_bytes: int) -> list[Buffer]:
    """The first buffers, until they come to `size_bytes`."""
    found: list[Buffer] = []
    for buffer in buffers:
        if size_bytes <= 0:
            break
        found.append(buffer)
        size_bytes -= buffer.size_bytes
    return found
