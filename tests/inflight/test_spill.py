"""Channels that spill: order, positions, a bound of memory, and nothing lost to a full disk."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest
from hypothesis import given as generated
from hypothesis import settings
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.credit import Window
from headrace.channels.events import EndOfInput
from headrace.channels.gate import Gate, InputChannel
from headrace.channels.spilled import RunFile, Spilled
from headrace.inflight.spill import (
    RETRY_NS,
    DeleteRun,
    ReadRun,
    Spill,
    SpillLimits,
    SpillOrder,
    WriteRun,
)

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
ROW_BYTES = 8
WINDOW_BYTES = 10 * ROW_BYTES
MEMORY_BYTES = 16 * ROW_BYTES
LIMITS = SpillLimits(MEMORY_BYTES, 1 << 30)


class Disk:
    """Runs in memory. Orders wait until the test carries them out."""

    def __init__(self, limits: SpillLimits = LIMITS, *, always: frozenset[ChannelId]) -> None:
        channels = [
            InputChannel(
                id,
                0,
                position=0,
                ended=False,
                window=Window(WINDOW_BYTES, None),
                feedback=id in always,
            )
            for id in (A, B)
        ]
        self.gate = Gate(channels)
        self.gate.open()
        self.spill = Spill(self.gate, limits)
        self.waiting: deque[SpillOrder] = deque()
        self.runs: dict[int, pa.Table] = {}
        self.full = False
        self.now_ns = 0

    def arrive(self, id: ChannelId, rows: int) -> None:
        """Records arrive; they are their own positions."""
        channel = self.gate.channels[id]
        numbers = pa.array(range(channel.arrived, channel.arrived + rows), pa.int64())
        batch = pa.record_batch({"x": numbers})
        channel.buffer_arrived(Buffer(channel.arrived, rows, rows * ROW_BYTES, (batch,)))
        self.go_on()

    def room(self, id: ChannelId) -> int:
        """How many rows the producer may send."""
        credit = self.gate.channels[id].credit
        return (credit.limit_bytes - credit.received_bytes) // ROW_BYTES

    def go_on(self) -> None:
        self.spill.time_passed(self.now_ns)
        self.spill.grants()
        self.waiting += self.spill.orders(self.now_ns)
        self.gate.check()
        self.spill.check()

    def carry_out(self) -> None:
        """The first order that waits."""
        order = self.waiting.popleft()
        match order:
            case WriteRun(number) if self.full:
                self.spill.unwritten(number, "full", self.now_ns)
            case WriteRun(number):
                parts = [part for buffer in order.buffers for part in buffer.parts]
                self.runs[number] = pa.Table.from_batches(parts)
                self.spill.written(RunFile(number, self.runs[number].num_rows, 1, "0" * 16))
            case ReadRun(file):
                self.spill.was_read(file.number, self.runs[file.number])
            case DeleteRun(file):
                del self.runs[file.number]
        self.go_on()

    def rest(self) -> None:
        while self.waiting:
            self.carry_out()

    def take(self, rows_max: int) -> list[tuple[ChannelId, int]]:
        """Work on the next records; each is told by its channel."""
        given = self.gate.next_input(rows_max)
        self.gate.commit(given)
        self.go_on()
        return [
            (one.channel, x)
            for one in given
            for part in one.buffer.parts
            for x in part["x"].to_pylist()
        ]

    @property
    def in_memory_bytes(self) -> int:
        return sum(c.queued_bytes - c.spilled_bytes for c in self.gate.channels.values())


def blocked(limits: SpillLimits = LIMITS) -> Disk:
    disk = Disk(limits, always=frozenset())
    disk.gate.channels[A].blocked = True
    return disk


def fill(disk: Disk, rows: int) -> None:
    """`rows` records arrive over A, as fast as credit and disk permit."""
    while rows:
        now = min(rows, disk.room(A), 5)
        assert now, disk.spill.describe()
        disk.arrive(A, now)
        disk.rest()
        rows -= now


def test_a_blocked_channel_takes_in_ten_times_its_window() -> None:
    disk = blocked()
    fill(disk, 100)
    assert disk.in_memory_bytes <= MEMORY_BYTES
    assert disk.gate.channels[A].spilled_bytes + disk.in_memory_bytes == 100 * ROW_BYTES


def test_a_channel_that_is_not_blocked_gets_no_credit_beyond_its_window() -> None:
    disk = Disk(always=frozenset())
    disk.arrive(A, 10)
    assert disk.room(A) == 0
    assert not disk.waiting


def test_a_short_alignment_writes_nothing() -> None:
    disk = blocked()
    disk.arrive(A, 8)
    assert disk.room(A) == 10
    assert not disk.waiting


def test_unblocked_records_come_in_order_and_no_run_is_left() -> None:
    disk = blocked()
    fill(disk, 100)
    disk.gate.channels[A].blocked = False
    disk.go_on()
    found = []
    for _ in range(200):
        found += [x for _, x in disk.take(3)]
        disk.rest()
    assert found == list(range(100))
    assert disk.runs == {}
    assert disk.room(A) >= 5


def test_after_a_block_credit_waits_until_the_backlog_is_consumed() -> None:
    disk = blocked()
    fill(disk, 60)
    disk.gate.channels[A].blocked = False
    disk.go_on()
    before = disk.gate.channels[A].credit.limit_bytes
    for _ in range(10):
        disk.take(3)
        disk.rest()
    assert disk.gate.channels[A].credit.limit_bytes == before


def test_a_full_disk_loses_nothing_and_stops_credit_until_there_is_space() -> None:
    disk = blocked()
    disk.full = True
    while disk.room(A):
        disk.arrive(A, min(5, disk.room(A)))
        disk.rest()
    assert MEMORY_BYTES <= disk.in_memory_bytes <= MEMORY_BYTES + WINDOW_BYTES
    assert disk.spill.trouble == "full"
    assert disk.spill.next_deadline_ns() == RETRY_NS
    disk.full, disk.now_ns = False, RETRY_NS
    disk.go_on()
    disk.rest()
    assert disk.room(A) > 0
    assert disk.spill.trouble == ""
    fill(disk, 20)


def test_at_the_limit_of_disk_the_records_stay_in_memory_and_the_reason_says_what_to_do() -> None:
    disk = blocked(SpillLimits(MEMORY_BYTES, 3))
    for _ in range(100):
        if not disk.room(A):
            break
        disk.arrive(A, min(5, disk.room(A)))
        disk.rest()
    assert disk.room(A) == 0
    assert "raise network.spill_disk" in disk.spill.trouble
    assert disk.in_memory_bytes <= MEMORY_BYTES + WINDOW_BYTES


def test_a_run_stays_while_a_cut_names_it() -> None:
    disk = blocked()
    fill(disk, 40)
    captured = disk.gate.channels[A].captured(40)
    assert any(isinstance(item, Spilled) for item in captured)
    disk.spill.hold(7, captured)
    disk.gate.channels[A].blocked = False
    disk.go_on()
    for _ in range(40):
        disk.take(3)
        disk.rest()
    assert disk.runs
    disk.spill.release(7)
    disk.go_on()
    disk.rest()
    assert disk.runs == {}


def test_a_run_whose_channel_is_unblocked_meanwhile_is_of_no_use() -> None:
    disk = blocked()
    while not disk.waiting:
        disk.arrive(A, min(5, disk.room(A)))
    disk.gate.channels[A].blocked = False
    disk.rest()
    assert disk.gate.channels[A].spilled_bytes == 0
    assert disk.runs == {}


def test_a_channel_that_spills_always_never_waits_for_its_head() -> None:
    disk = Disk(always=frozenset({A}))
    fill(disk, 200)
    assert disk.in_memory_bytes <= MEMORY_BYTES + WINDOW_BYTES


def test_the_limit_of_disk_is_exceeded_by_a_channel_that_spills_always() -> None:
    disk = Disk(SpillLimits(MEMORY_BYTES, 3), always=frozenset({A}))
    for _ in range(100):
        disk.arrive(A, min(5, disk.room(A))) if disk.room(A) else None
        disk.rest()
    assert disk.spill.is_exceeded


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int]]:
    words = ("arrive A", "arrive B", "take", "disk", "block", "unblock", "full", "space")
    return draw(st.lists(st.tuples(st.sampled_from(words), st.integers(1, 9)), max_size=120))


@pytest.mark.parametrize("always", [frozenset(), frozenset({A})], ids=["blocked", "always"])
@generated(steps())
@settings(max_examples=60, deadline=None)
def test_whatever_happens_records_come_once_and_in_order(
    always: frozenset[ChannelId], happens: list[tuple[str, int]]
) -> None:
    disk = Disk(always=always)
    found: dict[ChannelId, list[int]] = {A: [], B: []}
    for word, count in happens:
        _do(disk, word, count, found)
        most_bytes = MEMORY_BYTES + 2 * LIMITS.run_bytes + 2 * WINDOW_BYTES
        assert disk.in_memory_bytes <= most_bytes + 9 * ROW_BYTES
    disk.full = False
    for id in (A, B):
        disk.gate.channels[id].blocked = False
        disk.gate.channels[id].event_arrived(disk.gate.channels[id].arrived, EndOfInput())
    for _ in range(1000):
        _do(disk, "take", 9, found)
        disk.rest()
    for id, rows in found.items():
        assert rows == list(range(disk.gate.channels[id].arrived))
    assert disk.runs == {}


def _do(disk: Disk, word: str, count: int, found: dict[ChannelId, list[int]]) -> None:
    match word:
        case "arrive A" | "arrive B":
            id = A if word[-1] == "A" else B
            if rows := min(count, disk.room(id)):
                disk.arrive(id, rows)
        case "take":
            disk.gate.next_event()
            for id, x in disk.take(count):
                found[id].append(x)
        case "disk":
            for _ in range(min(count, len(disk.waiting))):
                disk.carry_out()
        case "block" | "unblock":
            disk.gate.channels[A].blocked = word == "block"
            disk.now_ns += RETRY_NS // 2
            disk.go_on()
        case _:
            disk.full = word == "full"
