"""Assignment: whatever the new parallelism, every piece of state and every record finds exactly its
owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from msgspec.structs import replace

from headrace.channels.keygroups import key_group_range
from headrace.recovery.assignment import NewTask, assign
from headrace.recovery.handles import DatabaseHandle, StateHandle
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    SubtaskSnapshot,
    TaskInfo,
)
from headrace.recovery.redistribution import Incompatible, NewEdge

from .assigned import (
    BY_KEY,
    GROUPS,
    alone,
    checkpoint,
    info,
    joined,
    parallelisms,
    snapshot,
)


def handle(operator: str, kind: str, subtask: int) -> StateHandle:
    """State of an old subtask; its path says whose."""
    return StateHandle(operator, "state", kind, f"chk-7/{subtask}", 8, 1, "0" * 16, 1)


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


# --- state ----------------------------------------------------------------------------------------


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


# --- the end of input -----------------------------------------------------------------------------


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
    """Its sources find out once more that they have nothing left, and so their consumers' channels
    have not ended.
    """
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


def test_a_task_that_deals_its_state_out_is_opened_again_when_it_had_finished_in_part() -> None:
    """Splits of a source that one subtask has not read may go to one that had read all of its."""
    old = finished_in_part("unaligned", "keyed", "union")
    assigned = assign(old, [alone("totals", 2)], GROUPS)
    assert not any(s.finished for s in assigned)
    assert state_of_old(assigned) == {("keyed", 1), ("union", 0), ("union", 1)}
    whole = replace(old, subtasks=[replace(s, finished=True) for s in old.subtasks])
    assert all(s.finished for s in assign(whole, [alone("totals", 2)], GROUPS))


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


def test_the_head_of_a_loop_finishes_before_its_back_edges() -> None:
    """Or the ends of all tasks behind the loop were taken back, and came once more."""
    entry, back = NewEdge("numbers->loop/0", 0, BY_KEY), NewEdge("again", 2, BY_KEY, feedback=True)
    tasks = [
        alone("numbers", 1),
        NewTask(info("loop", 2), [[(0, 0), (1, 0), (1, 1)]] * 2, {0: entry, 1: back}),
        NewTask(info("body", 2), [[(2, 0), (2, 1)]] * 2, {2: NewEdge("loop->body/0", 1, BY_KEY)}),
    ]
    flags = [(0, 0, True), (1, 0, True), (1, 1, True), (2, 0, True), (2, 1, False)]
    snapshots = [snapshot(task, index, finished=finished) for task, index, finished in flags]
    old = checkpoint([task.info for task in tasks], *snapshots)
    assigned = assign(old, tasks, GROUPS)
    assert [s.finished for s in assigned] == [True, True, True, True, False]
