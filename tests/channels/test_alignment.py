"""Alignment: the cut is taken exactly when every channel has delivered, and no channel stays
blocked.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.alignment import Aligned, Alignment, AlignmentOutcome
from headrace.channels.buffer import ChannelId
from headrace.channels.events import Barrier, CheckpointMode

A, B, C = (ChannelId(0, producer, 0) for producer in range(3))
NOTHING = AlignmentOutcome()


def aligned(checkpoint: int) -> Barrier:
    return Barrier(checkpoint, CheckpointMode.ALIGNED, 0)


def counted(checkpoint: int) -> Barrier:
    return Barrier(checkpoint, CheckpointMode.AT_LEAST_ONCE, 0)


def test_a_single_channel_is_aligned_at_once() -> None:
    outcome = Alignment([A]).barrier(A, aligned(1), 5)
    assert outcome == AlignmentOutcome(aligned=Aligned(aligned(1), alignment_ns=0))


def test_channels_are_blocked_until_the_last_barrier_comes() -> None:
    alignment = Alignment([A, B, C])
    assert alignment.barrier(B, aligned(1), 10) == AlignmentOutcome(block=B)
    assert alignment.barrier(A, aligned(1), 15) == AlignmentOutcome(block=A)
    assert alignment.describe().endswith("pending=[1:2/3]")
    last = alignment.barrier(C, aligned(1), 30)
    assert last == AlignmentOutcome(unblock=(A, B), aligned=Aligned(aligned(1), 20))
    assert alignment.describe().endswith("pending=[]")


def test_a_newer_barrier_ends_an_older_alignment() -> None:
    alignment = Alignment([A, B, C])
    alignment.barrier(A, aligned(1), 0)
    alignment.barrier(B, aligned(1), 0)
    newer = alignment.barrier(C, aligned(2), 0)
    assert newer == AlignmentOutcome(subsumed=(1,), unblock=(A, B), block=C)
    alignment.barrier(A, aligned(2), 0)
    assert alignment.barrier(B, aligned(2), 0).aligned == Aligned(aligned(2), 0)


def test_a_single_newer_barrier_can_complete_what_it_began() -> None:
    alignment = Alignment([A, B])
    alignment.barrier(A, aligned(1), 0)
    alignment.barrier(B, aligned(2), 0)
    assert alignment.barrier(A, aligned(2), 3) == AlignmentOutcome(
        unblock=(B,), aligned=Aligned(aligned(2), 3)
    )


def test_a_barrier_of_a_completed_checkpoint_is_ignored() -> None:
    alignment = Alignment([A])
    alignment.barrier(A, aligned(2), 0)
    assert alignment.barrier(A, aligned(1), 0) == NOTHING


def test_a_barrier_overtaken_by_a_newer_one_is_ignored() -> None:
    alignment = Alignment([A, B])
    assert alignment.barrier(A, aligned(2), 0) == AlignmentOutcome(block=A)
    assert alignment.barrier(B, aligned(1), 0) == NOTHING, "its channel must go on to barrier 2"
    assert alignment.barrier(B, aligned(2), 0).aligned == Aligned(aligned(2), 0)


def test_a_cancelled_alignment_unblocks_and_its_late_barriers_are_ignored() -> None:
    alignment = Alignment([A, B, C])
    alignment.barrier(C, aligned(1), 0)
    alignment.barrier(A, aligned(1), 0)
    assert alignment.cancel(1) == (A, C)
    assert alignment.cancel(1) == ()
    assert alignment.barrier(B, aligned(1), 0) == NOTHING
    assert alignment.describe().endswith("pending=[]")


def test_a_checkpoint_cancelled_before_its_first_barrier_never_blocks() -> None:
    alignment = Alignment([A, B])
    assert alignment.cancel(1) == ()
    assert alignment.barrier(A, aligned(1), 0) == NOTHING
    assert alignment.barrier(A, aligned(2), 0) == AlignmentOutcome(block=A)


def test_at_least_once_blocks_nothing_and_counts_side_by_side() -> None:
    alignment = Alignment([A, B])
    assert alignment.barrier(A, counted(1), 0) == NOTHING
    assert alignment.barrier(A, counted(2), 1) == NOTHING
    assert alignment.describe().endswith("pending=[1:1/2 2:1/2]")
    assert alignment.barrier(B, counted(1), 4).aligned == Aligned(counted(1), 4)
    assert alignment.barrier(B, counted(2), 5).aligned == Aligned(counted(2), 4)


def test_cancelling_at_least_once_unblocks_nothing() -> None:
    alignment = Alignment([A, B])
    alignment.barrier(A, counted(1), 0)
    assert alignment.cancel(1) == ()
    assert alignment.barrier(B, counted(1), 0) == NOTHING


@pytest.mark.parametrize(
    ("channel", "reason"), [(A, "e0:0>0: barrier 1 twice"), (C, "unknown channel e0:2>0")]
)
def test_barriers_that_cannot_be_are_a_bug(channel: ChannelId, reason: str) -> None:
    alignment = Alignment([A, B])
    alignment.barrier(A, aligned(1), 0)
    with pytest.raises(AssertionError, match=reason):
        alignment.barrier(channel, aligned(1), 0)


def test_the_state_can_be_read_as_text() -> None:
    alignment = Alignment([A, B])
    alignment.barrier(A, aligned(3), 0)
    assert alignment.describe().startswith("settled=")
    assert "pending=[3:1/2]" in alignment.describe()


class Consumer:
    """A subtask reduced to its alignment: obeys blocking, and notes what was cut when."""

    def __init__(self, arrivals: dict[ChannelId, list[int]]) -> None:
        self.queues = {channel: deque(barriers) for channel, barriers in arrivals.items()}
        self.alignment = Alignment(arrivals)
        self.delivered: dict[int, set[ChannelId]] = {}
        self.cancelled: set[int] = set()
        self.blocked: set[ChannelId] = set()
        self.cuts: list[int] = []

    def ready(self) -> list[ChannelId]:
        return [c for c, queue in self.queues.items() if queue and c not in self.blocked]

    def deliver(self, channel: ChannelId) -> None:
        checkpoint = self.queues[channel].popleft()
        outcome = self.alignment.barrier(channel, aligned(checkpoint), 0)
        self.delivered.setdefault(checkpoint, set()).add(channel)
        assert self.blocked >= set(outcome.unblock), "unblocked what was not blocked"
        self.blocked -= set(outcome.unblock)
        self.blocked |= set() if outcome.block is None else {outcome.block}
        if outcome.aligned is not None:
            self.cuts.append(checkpoint)
            assert self.delivered[checkpoint] == set(self.queues), "cut before all had delivered"
            assert checkpoint not in self.cancelled, "cut what was cancelled"

    def cancel(self, checkpoint: int) -> None:
        self.cancelled.add(checkpoint)
        self.blocked -= set(self.alignment.cancel(checkpoint))


@st.composite
def arrivals_of(draw: st.DrawFn) -> dict[ChannelId, list[int]]:
    """Rising barriers on each channel, some missing on some channels; the last checkpoint comes on
    all of them.
    """
    last = draw(st.integers(1, 6))
    arrivals = {}
    for producer in range(draw(st.integers(1, 4))):
        some = draw(st.sets(st.integers(1, last)))
        arrivals[ChannelId(0, producer, 0)] = sorted(some | {last})
    return arrivals


@given(arrivals=arrivals_of(), data=st.data())
def test_in_every_order_the_last_checkpoint_is_cut_and_nothing_stays_blocked(
    arrivals: dict[ChannelId, list[int]], data: st.DataObject
) -> None:
    consumer = Consumer(arrivals)
    last = max(barriers[-1] for barriers in arrivals.values())
    while ready := consumer.ready():
        if last > 1 and data.draw(st.booleans()):
            consumer.cancel(data.draw(st.integers(1, last - 1)))
        else:
            consumer.deliver(data.draw(st.sampled_from(ready)))
    assert not any(consumer.queues.values()), f"stuck: {consumer.blocked}"
    assert not consumer.blocked
    assert consumer.cuts == sorted(set(consumer.cuts))
    assert consumer.cuts[-1] == last


@given(arrivals=arrivals_of(), data=st.data())
def test_what_comes_everywhere_and_is_never_cancelled_or_overtaken_is_cut(
    arrivals: dict[ChannelId, list[int]], data: st.DataObject
) -> None:
    """Every channel delivers every barrier, so that none can be overtaken: all are cut, in
    order.
    """
    last = max(barriers[-1] for barriers in arrivals.values())
    consumer = Consumer({channel: list(range(1, last + 1)) for channel in arrivals})
    while ready := consumer.ready():
        consumer.deliver(data.draw(st.sampled_from(ready)))
    assert consumer.cuts == list(range(1, last + 1))
    assert not consumer.blocked


def test_back_edges_are_not_waited_for() -> None:
    alignment = Alignment([A, B, C], feedback=[C])
    assert alignment.barrier(A, aligned(1), 10) == AlignmentOutcome(block=A)
    last = alignment.barrier(B, aligned(1), 30)
    assert last == AlignmentOutcome(unblock=(A,), aligned=Aligned(aligned(1), 20))
    assert alignment.barrier(C, aligned(1), 40) == NOTHING


def test_a_back_edge_that_delivers_early_is_blocked_until_the_others_have() -> None:
    alignment = Alignment([A, B, C], feedback=[C])
    assert alignment.barrier(C, aligned(1), 10) == AlignmentOutcome(block=C)
    assert alignment.barrier(A, aligned(1), 10) == AlignmentOutcome(block=A)
    assert alignment.describe().endswith("pending=[1:1/2]")
    last = alignment.barrier(B, aligned(1), 30)
    early = frozenset({C})
    assert last == AlignmentOutcome(unblock=(A, C), aligned=Aligned(aligned(1), 20, early))
