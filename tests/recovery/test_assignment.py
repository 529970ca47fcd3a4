"""Assignment: whatever the new parallelism, every piece of state and every record finds exactly its owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.channels.keygroups import key_group_range
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import Replay
from headrace.recovery.assignment import Affinity, Incompatible, NewEdge, NewTask, assign
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    DatabaseHandle,
    EdgeInfo,
    StateHandle,
    SubtaskSnapshot,
    TaskInfo,
)

GROUPS = 16
parallelisms = st.integers(1, GROUPS)


def info(name: str, parallelism: int) -> TaskInfo:
    return TaskInfo(name, [name], [name], parallelism)


def handle(operator: str, kind: str, subtask: int) -> StateHandle:
    """State of an old subtask; its path says whose."""
    return StateHandle(operator, "state", kind, f"chk-7/{subtask}", 8, 1, "0" * 16, 1)


def snapshot(
    task: int,
    index: int,
    *states: StateHandle,
    finished: bool = False,
    inflight: Sequence[ChannelStateHandle] = (),
) -> SubtaskSnapshot:
    return SubtaskSnapshot(task, index, finished, list(states), [], [], list(inflight))


def checkpoint(tasks: list[TaskInfo], *subtasks: SubtaskSnapshot) -> CheckpointMetadata:
    return CheckpointMetadata(
        job="job",
        checkpoint=7,
        epoch=1,
        mode="aligned",
        savepoint=False,
        created_ms=0,
        duration_ns=0,
        max_parallelism=GROUPS,
        tasks=tasks,
        edges=[EdgeInfo("numbers->totals/0", 0, 1)] if len(tasks) > 1 else [],
        subtasks=list(subtasks),
        transactions=[],
    )


def alone(name: str, parallelism: int) -> NewTask:
    """A task without inputs."""
    return NewTask(info(name, parallelism), [[] for _ in range(parallelism)], {})


def joined(producers: int, consumers: int, affinity: Affinity = Affinity.RECORD) -> list[NewTask]:
    """numbers -> totals, every producer to every consumer."""
    channels = [[(0, producer) for producer in range(producers)] for _ in range(consumers)]
    edge = NewEdge("numbers->totals/0", 0, affinity)
    return [alone("numbers", producers), NewTask(info("totals", consumers), channels, {0: edge})]


def with_state(kind: str, parallelism: int) -> CheckpointMetadata:
    """One task whose subtasks have a handle each."""
    subtasks = [snapshot(0, i, handle("totals", kind, i)) for i in range(parallelism)]
    return checkpoint([info("totals", parallelism)], *subtasks)


def owners(kind: str, old: int, new: int) -> list[list[int]]:
    """By new subtask: the old subtasks whose state it gets."""
    assigned = assign(with_state(kind, old), [alone("totals", new)], GROUPS)
    return [[int(h.path.rpartition("/")[2]) for h in s.states] for s in assigned]


def with_databases(parallelism: int) -> CheckpointMetadata:
    """One task whose subtasks keep their keys in a database each; its format says whose."""
    subtasks = []
    for index in range(parallelism):
        groups = key_group_range(GROUPS, parallelism, index)
        database = DatabaseHandle("totals", str(index), groups.start, groups.stop, [], [], [])
        subtasks.append(replace(snapshot(0, index), databases=[database]))
    return checkpoint([info("totals", parallelism)], *subtasks)


@given(parallelisms, parallelisms)
def test_every_database_goes_to_whoever_owns_one_of_its_key_groups(old: int, new: int) -> None:
    assigned = assign(with_databases(old), [alone("totals", new)], GROUPS)
    for subtask in assigned:
        mine = key_group_range(GROUPS, new, subtask.index)
        expected = [
            str(index)
            for index in range(old)
            if set(mine) & set(key_group_range(GROUPS, old, index))
        ]
        assert [database.format for database in subtask.databases] == expected


def test_a_database_that_nobody_claims_is_refused() -> None:
    with pytest.raises(Incompatible, match="'totals'"):
        assign(with_databases(2), [alone("other", 2)], GROUPS)
    assigned = assign(with_databases(2), [alone("other", 2)], GROUPS, allow_unclaimed=True)
    assert [subtask.databases for subtask in assigned] == [[], []]


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("keyed", [[0], [1], [2]]),
        ("list", [[0], [1], [2]]),
        ("broadcast", [[0], [1], [2]]),
        ("union", [[0, 1, 2], [0, 1, 2], [0, 1, 2]]),
    ],
)
def test_at_the_same_parallelism_everybody_gets_its_own_back(
    kind: str, expected: list[list[int]]
) -> None:
    """Except for a union, of which everybody gets all."""
    assert owners(kind, 3, 3) == expected


@given(old=parallelisms, new=parallelisms)
def test_every_key_group_comes_to_its_new_owner_from_its_old_one(old: int, new: int) -> None:
    found = owners("keyed", old, new)
    for subtask, theirs in enumerate(found):
        mine = set(key_group_range(GROUPS, new, subtask))
        held = [set(key_group_range(GROUPS, old, i)) for i in theirs]
        assert mine <= set().union(*held), "a key group is missing"
        assert all(groups & mine for groups in held), "a handle that holds nothing of its own"
        assert len(set(theirs)) == len(theirs)


@given(old=parallelisms, new=parallelisms)
def test_lists_are_dealt_out_once_each(old: int, new: int) -> None:
    dealt = Counter(i for theirs in owners("list", old, new) for i in theirs)
    assert dealt == Counter(range(old))


@given(old=parallelisms, new=parallelisms)
def test_everybody_gets_the_whole_of_a_union(old: int, new: int) -> None:
    assert owners("union", old, new) == [list(range(old))] * new


@given(old=parallelisms, new=parallelisms)
def test_everybody_gets_one_copy_of_broadcast_state(old: int, new: int) -> None:
    assert all(len(theirs) == 1 for theirs in owners("broadcast", old, new))


def test_state_is_found_by_the_operators_name_wherever_it_runs_now() -> None:
    old = checkpoint(
        [info("a", 1), info("b", 1)],
        snapshot(0, 0, handle("a", "list", 0)),
        snapshot(1, 0, handle("b", "list", 1)),
    )
    fused = NewTask(TaskInfo("b -> a", ["b", "a"], ["b", "a"], 1), [[]], {})
    (only,) = assign(old, [fused], GROUPS)
    assert sorted(h.operator for h in only.states) == ["a", "b"]


def test_state_that_nobody_claims_is_refused_unless_allowed() -> None:
    with pytest.raises(Incompatible) as caught:
        assign(with_state("keyed", 2), [alone("sums", 2)], GROUPS)
    assert "holds state of operator 'totals', which this job does not have" in str(caught.value)
    allowed = assign(with_state("keyed", 2), [alone("sums", 2)], GROUPS, allow_unclaimed=True)
    assert [s.states for s in allowed] == [[], []]


def test_another_max_parallelism_is_refused_with_the_old_one() -> None:
    with pytest.raises(Incompatible, match="set max_parallelism=16"):
        assign(with_state("keyed", 2), [alone("totals", 2)], 32)


def test_state_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Incompatible, match="unknown kind 'strange'"):
        assign(with_state("strange", 2), [alone("totals", 2)], GROUPS)


# --- the end of input -------------------------------------------------------------------------------------------------


def ended(*flags: bool, consumers: tuple[bool, ...] = (False,)) -> CheckpointMetadata:
    """Which producers and consumers had finished."""
    return checkpoint(
        [info("numbers", len(flags)), info("totals", len(consumers))],
        *(snapshot(0, i, finished=flag) for i, flag in enumerate(flags)),
        *(snapshot(1, i, finished=flag) for i, flag in enumerate(consumers)),
    )


def test_channels_start_at_zero_and_carry_over_whether_they_ended() -> None:
    *_, consumer = assign(ended(True, False), joined(2, 1), GROUPS)
    assert consumer.received == [
        ChannelPosition(0, 0, 0, 0, ended=True),
        ChannelPosition(0, 1, 0, 0, ended=False),
    ]


@pytest.mark.parametrize("flags", [(True, True), (False, False)])
def test_a_task_that_had_finished_as_a_whole_or_not_at_all_can_be_rescaled(
    flags: tuple[bool, ...],
) -> None:
    assigned = assign(ended(*flags), joined(3, 1), GROUPS)
    assert [s.finished for s in assigned] == [flags[0]] * 3 + [False]


def test_a_task_that_had_finished_in_part_goes_on_where_it_was_at_its_parallelism() -> None:
    assigned = assign(ended(True, False), joined(2, 1), GROUPS)
    assert [s.finished for s in assigned] == [True, False, False]


@pytest.mark.parametrize("new", [1, 3])
def test_a_task_that_had_finished_in_part_is_opened_again_at_another_parallelism(new: int) -> None:
    """Its sources find out once more that they have nothing left, and so their consumers' channels have not ended."""
    assigned = assign(ended(True, False), joined(new, 1), GROUPS)
    assert not any(s.finished for s in assigned)
    assert not any(channel.ended for s in assigned for channel in s.received)


def finished_in_part(mode: str, *kinds: str) -> CheckpointMetadata:
    """Of the two subtasks of one task the first had finished; each kept state of all kinds."""
    subtasks = [
        snapshot(0, i, *(handle("totals", kind, i) for kind in kinds), finished=i == 0)
        for i in range(2)
    ]
    return replace(checkpoint([info("totals", 2)], *subtasks), mode=mode)


def state_of_old(assigned: Sequence[SubtaskSnapshot]) -> set[tuple[str, int]]:
    """(kind, old subtask) of all state that is given out."""
    return {(h.kind, int(h.path.rpartition("/")[2])) for s in assigned for h in s.states}


def test_keys_that_had_been_finished_are_not_finished_once_more() -> None:
    old = finished_in_part("unaligned", "keyed", "union")
    assert state_of_old(assign(old, [alone("totals", 3)], GROUPS)) == {
        ("keyed", 1),
        ("union", 0),
        ("union", 1),
    }


def test_keys_that_had_been_finished_stay_at_their_parallelism() -> None:
    old = finished_in_part("unaligned", "keyed")
    assert state_of_old(assign(old, [alone("totals", 2)], GROUPS)) == {("keyed", 0), ("keyed", 1)}


def test_keys_of_a_consumer_that_ran_ahead_are_kept() -> None:
    old = finished_in_part("at_least_once", "keyed")
    assert state_of_old(assign(old, [alone("totals", 3)], GROUPS)) == {("keyed", 0), ("keyed", 1)}


def test_databases_of_finished_keys_are_left_out_as_well() -> None:
    old = with_databases(2)
    first = replace(old.subtasks[0], finished=True)
    old = replace(old, mode="unaligned", subtasks=[first, *old.subtasks[1:]])
    assigned = assign(old, [alone("totals", 3)], GROUPS)
    assert {d.format for s in assigned for d in s.databases} == {"1"}


def test_a_new_task_has_not_finished() -> None:
    old = checkpoint([info("numbers", 1)], snapshot(0, 0, finished=True))
    assigned = assign(old, joined(1, 1), GROUPS)
    assert [s.finished for s in assigned] == [True, False]


def test_a_consumer_that_ran_ahead_of_its_producers_has_not_finished() -> None:
    """An at-least-once cut may say so."""
    assigned = assign(ended(True, False, consumers=(True,)), joined(2, 1), GROUPS)
    assert [s.finished for s in assigned] == [True, False, False]


# --- in-flight records ------------------------------------------------------------------------------------------------


def in_flight(producers: int, consumers: int) -> CheckpointMetadata:
    """Of every channel one stored record before the receiver, and one behind it in the sender's queue."""
    subtasks = []
    for task, count in ((0, producers), (1, consumers)):
        for index in range(count):
            mine = [
                ChannelStateHandle(0, p, c, side, first, [stored(p, c, first)], ended=False)
                for p in range(producers)
                for c in range(consumers)
                for side, first, owner in (("input", 0, (1, c)), ("output", 1, (0, p)))
                if owner == (task, index)
            ]
            subtasks.append(snapshot(task, index, inflight=mine))
    return checkpoint([info("numbers", producers), info("totals", consumers)], *subtasks)


def stored(producer: int, consumer: int, first: int) -> BufferHandle:
    return BufferHandle(f"chk-7/{producer}-{consumer}-{first}", 8, 1, "0" * 16, 1, 0, 1)


def replayed(metadata: CheckpointMetadata, new: list[NewTask]) -> list[list[BufferHandle]]:
    """By new consumer: the stored buffers that it replays, in order."""
    assigned = assign(metadata, new, GROUPS)
    return [[b for h in s.inflight for b in h.buffers] for s in assigned if s.task == 1]


small = st.integers(1, 4)


@given(producers=small, consumers=small, affinity=st.sampled_from(Affinity))
def test_at_the_same_parallelism_every_channel_goes_on_where_it_stood(
    producers: int, consumers: int, affinity: Affinity
) -> None:
    found = replayed(in_flight(producers, consumers), joined(producers, consumers, affinity))
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
    found = replayed(in_flight(producers, old), joined(producers, new, Affinity.RECORD))
    for consumer, buffers in enumerate(found):
        if new != old:
            assert len(buffers) == producers * old * 2
            assert all(b.filters == [(0, new, consumer)] for b in buffers)


@given(producers=small, old=small, new=small)
def test_records_of_forward_edges_are_dealt_out_once_each_and_channels_stay_whole(
    producers: int, old: int, new: int
) -> None:
    found = replayed(in_flight(producers, old), joined(producers, new, Affinity.CHANNEL))
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
    found = records(checkpoint_of(stored), new, Affinity.NONE)
    everything = [n for consumer in range(old) for h in stored[consumer] for n in content_of(h)]
    assert sorted(n for some in found for n in some) == sorted(everything)
    if new != old:
        assert max(map(len, found)) - min(map(len, found)) <= 1
        reads = [len(h) for h in replayed(checkpoint_of(stored), joined(1, new, Affinity.NONE))]
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
    found = replayed(in_flight(producers, old), joined(producers, new, Affinity.COPY))
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


# --- in-flight records that were still being replayed -----------------------------------------------------------------


def content(buffer: BufferHandle) -> list[int]:
    """The records that a reader gets, if the partitioner sends record n to consumer n modulo the parallelism."""
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


def records(metadata: CheckpointMetadata, new: int, affinity: Affinity) -> list[list[int]]:
    found = replayed(metadata, joined(1, new, affinity))
    return [[n for buffer in buffers for n in content(buffer)] for buffers in found]


def checkpoint_in_replay(new: int, affinity: Affinity) -> CheckpointMetadata:
    """Twelve records, rescaled from one consumer; then a checkpoint before any is replayed."""
    assigned = assign(checkpoint_of([[lone_buffer(12)]]), joined(1, new, affinity), GROUPS)
    consumers = [s.inflight for s in assigned if s.task == 1]
    return checkpoint_of([Replay(handles, {0: 0}).remaining() for handles in consumers])


@pytest.mark.parametrize("affinity", [Affinity.RECORD, Affinity.COPY])
def test_a_second_restart_during_a_replay_gives_everybody_its_own_back(affinity: Affinity) -> None:
    metadata = checkpoint_in_replay(3, affinity)
    expected = records(checkpoint_of([[lone_buffer(12)]]), 3, affinity)
    assert records(metadata, 3, affinity) == expected


@pytest.mark.parametrize("new", [1, 2, 4])
def test_records_with_affinity_that_were_being_replayed_can_be_rescaled_again(new: int) -> None:
    found = records(checkpoint_in_replay(3, Affinity.RECORD), new, Affinity.RECORD)
    assert sorted(n for some in found for n in some) == list(range(12))
    assert all(n % new == consumer for consumer, some in enumerate(found) for n in some)


@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_records_without_affinity_that_were_being_replayed_are_dealt_out_once(new: int) -> None:
    found = records(checkpoint_in_replay(3, Affinity.NONE), new, Affinity.NONE)
    assert sorted(n for some in found for n in some) == list(range(12))


def test_a_buffer_that_was_replayed_in_part_can_be_rescaled() -> None:
    metadata = checkpoint_of([[lone_buffer(12, skip=5)]])
    assert records(metadata, 2, Affinity.RECORD) == [[6, 8, 10], [5, 7, 9, 11]]


@pytest.mark.parametrize("affinity", [Affinity.RECORD, Affinity.NONE])
def test_nothing_is_lost_by_a_second_restart_after_scaling_down(affinity: Affinity) -> None:
    scaled = assign(in_flight(1, 3), joined(1, 1, affinity), GROUPS)
    left = Replay(scaled[-1].inflight, {0: 0}).remaining()
    (found,) = replayed(checkpoint_of([left]), joined(1, 1, affinity))
    assert len(found) == 6
