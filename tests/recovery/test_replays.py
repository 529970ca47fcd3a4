"""The second certificate: deals, accounts, and every way to break one."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay_ledger import ReplayCount
from headrace.recovery.metadata import CheckpointMetadata, EdgeInfo, SubtaskSnapshot, TaskInfo
from headrace.recovery.redistribution import NewEdge, in_flight_of
from headrace.recovery.replays import ReplayEdge, RestoredReplay, SubtaskReplay

KEY = "a->b/0"
HASH = Hash(("key",), 128)


def buffer(number: int, rows: int, skip: int = 0) -> BufferHandle:
    return BufferHandle("chk-1/w", 16 * number, 8, f"{number:016x}", rows, 0, rows, skip=skip)


def handle(consumer: int, *buffers: BufferHandle, side: str = "replay") -> ChannelStateHandle:
    return ChannelStateHandle(0, 0, consumer, side, 0, list(buffers), ended=False)


def consumer(index: int, *buffers: BufferHandle) -> SubtaskSnapshot:
    inflight = [handle(index, *buffers)] if buffers else []
    return SubtaskSnapshot(1, index, False, [], [], [], inflight)


def checkpoint(partitioner: Partitioner, *subtasks: SubtaskSnapshot) -> CheckpointMetadata:
    columns, parameters = list(partitioner.key_columns), list(partitioner.parameters)
    edge = EdgeInfo(KEY, 0, 1, partitioner.name, columns, parameters)
    tasks = [TaskInfo("a", ["a"], [], 1), TaskInfo("b", ["b"], [], len(subtasks))]
    subtasks = (SubtaskSnapshot(0, 0, False, [], [], []), *subtasks)
    return CheckpointMetadata(
        "job", 1, 1, "unaligned", False, 0, 0, 128, tasks, [edge], list(subtasks), []
    )


def edge_to(partitioner: Partitioner, parallelism: int) -> ReplayEdge:
    return ReplayEdge(NewEdge(KEY, 0, partitioner), 1, parallelism, 0)


def dealt(
    metadata: CheckpointMetadata, partitioner: Partitioner, parallelism: int
) -> list[SubtaskSnapshot]:
    """As the engine deals."""
    edge = NewEdge(KEY, 0, partitioner)
    return [
        SubtaskSnapshot(
            1,
            at,
            False,
            [],
            [],
            [],
            in_flight_of(metadata, 0, edge, (1, parallelism), at, moved=False),
        )
        for at in range(parallelism)
    ]


def restored(
    metadata: CheckpointMetadata, partitioner: Partitioner, snapshots: Sequence[SubtaskSnapshot]
) -> RestoredReplay:
    return RestoredReplay(metadata, {0: edge_to(partitioner, len(snapshots))}, snapshots)


def account(
    index: int, buffers: int, passed: int, committed: int, empty: int = 0, arrived: int = 0
) -> SubtaskReplay:
    return SubtaskReplay(1, index, [ReplayCount(0, buffers, empty, passed, committed, arrived)])


#: One consumer, which was dealt 3 + 4 records and has worked on 2 of the first 3 before.
METADATA = checkpoint(Rebalance(), consumer(0, buffer(0, 3, skip=2), buffer(1, 4)))
ONE = restored(METADATA, Rebalance(), dealt(METADATA, Rebalance(), 1))


def test_a_job_that_restored_nothing_has_nothing_to_account_for() -> None:
    empty = checkpoint(Rebalance(), consumer(0))
    replay = restored(empty, Rebalance(), [consumer(0)])
    assert replay.problems([consumer(0)], []) == []
    assert replay.problems([consumer(0, buffer(0, 1))], []) == [
        "subtask 0 of task 1 names records to replay, and none were restored"
    ]


def test_restored_is_committed_and_left() -> None:
    nothing_yet = [consumer(0, buffer(0, 3, skip=2), buffer(1, 4))]
    assert ONE.problems(nothing_yet, []) == []
    amid = [consumer(0, buffer(1, 4, skip=3))]
    assert ONE.problems(amid, [account(0, 1, 1, 4)]) == []
    assert ONE.problems([consumer(0)], [account(0, 2, 5, 5)]) == []


def test_records_that_are_forgotten_are_named() -> None:
    (problem,) = ONE.problems([consumer(0)], [account(0, 1, 1, 1)])
    assert problem == (
        "edge 'a->b/0' at 0: 2 buffers were restored, but 1 are worked on, 0 empty and 0 left"
    )


def test_records_that_are_left_though_worked_on_are_named() -> None:
    (problem,) = ONE.problems([consumer(0, buffer(1, 4))], [account(0, 1, 1, 3)])
    assert problem == (
        "edge 'a->b/0' at 0: 3 records are committed, but 1 in whole buffers and 0 in buffers that"
        " are left"
    )


def test_records_that_were_skipped_unread_are_named() -> None:
    (problem,) = ONE.problems([consumer(0)], [account(0, 2, 4, 4)])
    assert problem == (
        "edge 'a->b/0' at 0: 5 records of whole buffers were restored, but 4 worked on"
    )


def test_strangers_are_named() -> None:
    (problem,) = ONE.problems([consumer(0, buffer(9, 4))], [account(0, 1, 1, 1)])
    assert problem == "edge 'a->b/0' at 0: 1 buffers are left that were not restored"


def test_new_records_before_older_ones_are_named() -> None:
    left = [consumer(0, buffer(1, 4))]
    (problem,) = ONE.problems(left, [account(0, 1, 1, 1, arrived=2)])
    assert problem == (
        "edge 'a->b/0' at 0: 2 new records came before records that are left to replay"
    )
    assert ONE.problems([consumer(0)], [account(0, 2, 5, 5, arrived=2)]) == []


def test_an_empty_buffer_may_be_left_behind_others() -> None:
    nothing = checkpoint(Rebalance(), consumer(0, buffer(0, 3), buffer(1, 4, skip=4)))
    replay = restored(nothing, Rebalance(), dealt(nothing, Rebalance(), 1))
    left = [consumer(0, buffer(0, 3, skip=1), buffer(1, 4, skip=4))]
    assert replay.problems(left, [account(0, 0, 0, 1, empty=1)]) == []


def test_what_consumers_keep_of_an_edge_by_key_comes_to_what_there_was() -> None:
    metadata = checkpoint(HASH, consumer(0, buffer(0, 10)))
    replay = restored(metadata, HASH, dealt(metadata, HASH, 2))
    through = [consumer(0), consumer(1)]
    assert replay.problems(through, [account(0, 1, 6, 6), account(1, 1, 4, 4)]) == []
    assert replay.problems(through, [account(0, 1, 6, 6), account(1, 1, 5, 5)]) == [
        "edge 'a->b/0': 11 records passed the consumers' filters, of 10"
    ]


def test_a_wrong_deal_is_named_whatever_the_accounts_say() -> None:
    hashed = checkpoint(HASH, consumer(0, buffer(0, 10)))
    everything, nothing = [consumer(0, buffer(0, 10)), consumer(1, buffer(0, 10))], consumer(1)
    accounts = [account(0, 1, 10, 10), account(1, 1, 10, 10)]
    through = [consumer(0), consumer(1)]
    assert restored(hashed, HASH, everything).problems(through, accounts) == [
        "edge 'a->b/0': consumer 0 was dealt records that name others"
    ]
    shared = checkpoint(Rebalance(), consumer(0, buffer(0, 10)))
    assert restored(shared, Rebalance(), everything).problems(through, accounts) == [
        "edge 'a->b/0': 20 records were dealt, of 10"
    ]
    copied = checkpoint(Broadcast(), consumer(0, buffer(0, 10)))
    deal = [everything[0], nothing]
    assert restored(copied, Broadcast(), deal).problems(through, accounts[:1]) == [
        "edge 'a->b/0': consumer 1 was dealt other records: 0 in 0 buffers, of 10 in 1"
    ]
    same = checkpoint(HASH, consumer(0, buffer(0, 10)), consumer(1, buffer(1, 10)))
    swapped = [consumer(0, buffer(1, 10)), consumer(1, buffer(0, 10))]
    first, *_ = restored(same, HASH, swapped).problems(swapped, [])
    assert first == "edge 'a->b/0': consumer 0 was dealt other records: 10 in 1 buffers, of 10 in 1"


def test_every_deal_of_the_engine_passes_and_loses_nothing_unseen() -> None:
    rng = random.Random(5)
    for _ in range(400):
        partitioner = rng.choice([HASH, Rebalance(), Broadcast()])
        old, new = rng.randint(1, 4), rng.randint(1, 4)
        numbers = iter(range(100))
        owners = [
            consumer(at, *(buffer(next(numbers), rng.randint(1, 5)) for _ in range(2)))
            for at in range(old)
        ]
        metadata = checkpoint(partitioner, *owners)
        shares = dealt(metadata, partitioner, new)
        assert restored(metadata, partitioner, shares).problems(shares, []) == []
        at = rng.randrange(new)
        found = [h for h in shares[at].inflight if h.buffers]
        if found:
            less = [replace(found[0], buffers=found[0].buffers[1:]), *found[1:]]
            shares[at] = replace(shares[at], inflight=less)
            assert restored(metadata, partitioner, shares).problems(shares, []) != []


def test_shares_of_one_buffer_from_several_owners_are_told_apart() -> None:
    first, second = (replace(buffer(0, 10), filters=[(0, 2, owner)]) for owner in (0, 1))
    metadata = checkpoint(HASH, consumer(0, first), consumer(1, second))
    shares = dealt(metadata, HASH, 3)
    replay = restored(metadata, HASH, shares)
    assert replay.problems(shares, []) == []
    mine = shares[0].inflight[0].buffers
    rest = [consumer(0, mine[0]), *shares[1:]]
    assert replay.problems(rest, [account(0, 1, 3, 3)]) == []
