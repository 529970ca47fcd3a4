"""Redistribution: whatever the new parallelism, every record in flight is replayed by exactly its
consumers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.partitioner import Partitioner, Redistribution
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import Replay
from headrace.recovery.assignment import assign
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.redistribution import Incompatible

from .assigned import (
    BY_KEY,
    GROUPS,
    alone,
    checkpoint,
    in_flight,
    info,
    joined,
    parallelisms,
    replayed,
    snapshot,
)

small = st.integers(1, 4)
#: One partitioner for each redistribution.
EVERY_KIND = [BY_KEY, Rebalance(), Forward(), Broadcast()]


def test_every_redistribution_is_tested_here() -> None:
    assert {kind.redistribution for kind in EVERY_KIND} == set(Redistribution)


@given(producers=small, consumers=small, partitioner=st.sampled_from(EVERY_KIND))
def test_at_the_same_parallelism_every_channel_goes_on_where_it_stood(
    producers: int, consumers: int, partitioner: Partitioner
) -> None:
    found = replayed(in_flight(producers, consumers), joined(producers, consumers, partitioner))
    for consumer, buffers in enumerate(found):
        expected = [f"chk-7/{p}-{consumer}-{n}" for p in range(producers) for n in (0, 1)]
        assert sorted(b.path for b in buffers) == expected
        for producer in range(producers):
            mine = [b.path for b in buffers if b.path.startswith(f"chk-7/{producer}-")]
            assert mine == sorted(mine), "what the receiver had comes first"
        assert not any(b.filters for b in buffers)


@given(producers=small, old=small, new=small)
def test_records_with_affinity_are_read_by_all_and_filtered_by_each(
    producers: int, old: int, new: int
) -> None:
    found = replayed(in_flight(producers, old), joined(producers, new, BY_KEY))
    for consumer, buffers in enumerate(found):
        if new != old:
            assert len(buffers) == producers * old * 2
            assert all(b.filters == [(0, new, consumer)] for b in buffers)


@given(producers=small, old=small, new=small)
def test_records_of_forward_edges_are_dealt_out_once_each_and_channels_stay_whole(
    producers: int, old: int, new: int
) -> None:
    found = replayed(in_flight(producers, old), joined(producers, new, Forward()))
    assert Counter(b.path for buffers in found for b in buffers) == Counter(
        f"chk-7/{p}-{c}-{n}" for p in range(producers) for c in range(old) for n in (0, 1)
    )
    for buffers in found:
        channels = Counter(b.path.rpartition("-")[0] for b in buffers)
        assert set(channels.values()) <= {2}


@given(rows=st.lists(st.integers(1, 9), max_size=6), old=small, new=parallelisms)
def test_records_without_affinity_are_dealt_out_in_even_shares_cut_between_records(
    rows: list[int], old: int, new: int
) -> None:
    stored = [
        [
            ChannelStateHandle(0, 0, i, "input", 0, [whole_buffer(i, n)], ended=False)
            for i, n in enumerate(rows)
            if i % old == consumer
        ]
        for consumer in range(old)
    ]
    found = records(checkpoint_of(stored), new, Rebalance())
    everything = [n for consumer in range(old) for h in stored[consumer] for n in content_of(h)]
    assert sorted(n for some in found for n in some) == sorted(everything)
    if new != old:
        assert max(map(len, found)) - min(map(len, found)) <= 1
        reads = [len(h) for h in replayed(checkpoint_of(stored), joined(1, new, Rebalance()))]
        assert sum(reads) <= len(rows) + new - 1, "read by more consumers than need be"


def whole_buffer(number: int, rows: int) -> BufferHandle:
    """Its records are the numbers from 100 * `number` on."""
    return BufferHandle("chk-7/whole", 8, 1, "0" * 16, 100 * number + rows, 100 * number, rows)


def content_of(handle: ChannelStateHandle) -> list[int]:
    return [n for buffer in handle.buffers for n in content(buffer)]


@given(producers=small, old=small, new=small)
def test_a_consumer_of_copies_takes_the_place_of_one_old_consumer(
    producers: int, old: int, new: int
) -> None:
    found = replayed(in_flight(producers, old), joined(producers, new, Broadcast()))
    for buffers in found:
        assert len({b.path.split("-")[2] for b in buffers}) == 1
        assert len({b.path for b in buffers}) == len(buffers) == producers * 2


def test_records_of_an_edge_that_is_gone_are_refused_unless_allowed() -> None:
    new = [alone("numbers", 1), alone("totals", 1)]
    with pytest.raises(Incompatible, match="in-flight records of edge 'numbers->totals/0'"):
        assign(in_flight(1, 1), new, GROUPS)
    assert replayed_nothing(assign(in_flight(1, 1), new, GROUPS, allow_unclaimed=True))


def replayed_nothing(assigned: list[SubtaskSnapshot]) -> bool:
    return not any(s.inflight for s in assigned)


# --- in-flight records that were still being replayed ---------------------------------------------


def content(buffer: BufferHandle) -> list[int]:
    """The records that a reader gets, if the partitioner sends record n to consumer n modulo the
    parallelism.
    """
    records = list(range(buffer.start, buffer.start + buffer.rows))
    for skip, parallelism, consumer in buffer.filters:
        records = [n for n in records[skip:] if n % parallelism == consumer]
    return records[buffer.skip :]


def lone_buffer(rows: int, skip: int = 0) -> ChannelStateHandle:
    buffer = BufferHandle("chk-7/lone", 8, 1, "0" * 16, rows, 0, rows, skip=skip)
    side = "replay" if skip else "input"
    return ChannelStateHandle(0, 0, 0, side, 0, [buffer], ended=False)


def checkpoint_of(consumers: Sequence[Sequence[ChannelStateHandle]]) -> CheckpointMetadata:
    """One producer, and consumers with these handles."""
    return checkpoint(
        [info("numbers", 1), info("totals", len(consumers))],
        snapshot(0, 0),
        *(snapshot(1, index, inflight=handles) for index, handles in enumerate(consumers)),
    )


def records(metadata: CheckpointMetadata, new: int, partitioner: Partitioner) -> list[list[int]]:
    found = replayed(metadata, joined(1, new, partitioner))
    return [[n for buffer in buffers for n in content(buffer)] for buffers in found]


def checkpoint_in_replay(new: int, partitioner: Partitioner) -> CheckpointMetadata:
    """Twelve records, rescaled from one consumer; then a checkpoint before any is replayed."""
    assigned = assign(checkpoint_of([[lone_buffer(12)]]), joined(1, new, partitioner), GROUPS)
    consumers = [s.inflight for s in assigned if s.task == 1]
    return checkpoint_of([Replay(handles, {0: 0}).remaining() for handles in consumers])


@pytest.mark.parametrize("partitioner", [BY_KEY, Broadcast()])
def test_a_second_restart_during_a_replay_gives_everybody_its_own_back(
    partitioner: Partitioner,
) -> None:
    metadata = checkpoint_in_replay(3, partitioner)
    expected = records(checkpoint_of([[lone_buffer(12)]]), 3, partitioner)
    assert records(metadata, 3, partitioner) == expected


@pytest.mark.parametrize("new", [1, 2, 4])
def test_records_with_affinity_that_were_being_replayed_can_be_rescaled_again(new: int) -> None:
    found = records(checkpoint_in_replay(3, BY_KEY), new, BY_KEY)
    assert sorted(n for some in found for n in some) == list(range(12))
    assert all(n % new == consumer for consumer, some in enumerate(found) for n in some)


@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_records_without_affinity_that_were_being_replayed_are_dealt_out_once(new: int) -> None:
    found = records(checkpoint_in_replay(3, Rebalance()), new, Rebalance())
    assert sorted(n for some in found for n in some) == list(range(12))


def test_a_buffer_that_was_replayed_in_part_can_be_rescaled() -> None:
    metadata = checkpoint_of([[lone_buffer(12, skip=5)]])
    assert records(metadata, 2, BY_KEY) == [[6, 8, 10], [5, 7, 9, 11]]


@pytest.mark.parametrize("partitioner", [BY_KEY, Rebalance()])
def test_nothing_is_lost_by_a_second_restart_after_scaling_down(partitioner: Partitioner) -> None:
    scaled = assign(in_flight(1, 3), joined(1, 1, partitioner), GROUPS)
    left = Replay(scaled[-1].inflight, {0: 0}).remaining()
    (found,) = replayed(checkpoint_of([left]), joined(1, 1, partitioner))
    assert len(found) == 6
