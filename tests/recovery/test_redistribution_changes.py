"""Records in flight on an edge whose partitioner was changed: they go where the new one says, or
the restore is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.assignment import NewTask, assign
from headrace.recovery.metadata import EdgeInfo, SubtaskSnapshot
from headrace.recovery.redistribution import Incompatible, NewEdge

from .assigned import GROUPS, in_flight, joined


def repartitioned(
    was: str,
    columns: Sequence[str],
    now: NewEdge,
    consumers: int,
    *,
    parameters: Sequence[str] = (),
    replayed: bool = False,
) -> list[SubtaskSnapshot]:
    """Records in flight on 2 x 2 channels of an edge that had the partitioner `was`, for a plan
    that has `now`.
    """
    old = in_flight(2, 2)
    edges = [EdgeInfo("numbers->totals/0", 0, 1, was, list(columns), list(parameters))]
    if replayed:
        subtasks = [
            replace(s, inflight=[_with_filter(h) for h in s.inflight]) for s in old.subtasks
        ]
        old = replace(old, subtasks=subtasks)
    tasks = joined(2, consumers)
    tasks[1] = NewTask(tasks[1].info, tasks[1].channels, {0: now})
    return assign(replace(old, edges=edges), tasks, GROUPS)


def _with_filter(handle: ChannelStateHandle) -> ChannelStateHandle:
    return replace(handle, buffers=[replace(b, filters=[(0, 2, 0)]) for b in handle.buffers])


def edge_by(partitioner: Partitioner) -> NewEdge:
    return NewEdge("numbers->totals/0", 0, partitioner)


BY_KEY = edge_by(Hash(("key",), GROUPS))


@pytest.mark.parametrize(("was", "columns"), [("rebalance", []), ("hash", ["id"]), ("custom", [])])
@pytest.mark.parametrize("consumers", [2, 3])
def test_records_in_flight_go_where_the_new_key_says(
    was: str, columns: list[str], consumers: int
) -> None:
    """At the same parallelism too: every consumer reads all channels, and filters."""
    for subtask in repartitioned(was, columns, BY_KEY, consumers)[2:]:
        buffers = [b for h in subtask.inflight for b in h.buffers]
        assert len(buffers) == 8
        assert {tuple(b.filters[0]) for b in buffers} == {(0, consumers, subtask.index)}


def test_an_edge_that_was_not_changed_keeps_its_records_where_they_are() -> None:
    for subtask in repartitioned("hash", ["key"], BY_KEY, 2)[2:]:
        assert not any(b.filters for h in subtask.inflight for b in h.buffers)


@pytest.mark.parametrize(("boundaries", "filters"), [(["5"], 0), (["7"], 8)])
def test_records_in_flight_move_when_the_boundaries_of_ranges_do(
    boundaries: list[str], filters: int
) -> None:
    ranges = edge_by(ByRange("key", ("5",)))
    for subtask in repartitioned("range", ["key"], ranges, 2, parameters=boundaries)[2:]:
        buffers = [b for h in subtask.inflight for b in h.buffers]
        assert sum(len(b.filters) for b in buffers) == filters


def test_records_in_flight_lose_their_affinity() -> None:
    assigned = repartitioned("hash", ["key"], edge_by(Shuffle()), 3)
    buffers = [b for s in assigned for h in s.inflight for b in h.buffers]
    assert sum(b.rows for b in buffers) == 8
    assert not any(b.filters for b in buffers)


@pytest.mark.parametrize(
    ("now", "reopened"),
    [
        (BY_KEY, True),
        (edge_by(Broadcast()), True),
        (edge_by(Shuffle()), False),
    ],
)
def test_a_subtask_that_had_finished_is_opened_again_if_it_gets_others_records(
    now: NewEdge, reopened: bool
) -> None:
    old = in_flight(2, 2)
    first, *others = old.subtasks
    others[-1] = replace(others[-1], finished=True, inflight=[])
    old = replace(
        old,
        subtasks=[replace(first, finished=True), replace(others[0], finished=True), *others[1:]],
        edges=[EdgeInfo("numbers->totals/0", 0, 1, "custom")],
    )
    tasks = joined(2, 2)
    tasks[1] = NewTask(tasks[1].info, tasks[1].channels, {0: now})
    finished = [s.finished for s in assign(old, tasks, GROUPS)]
    assert finished == [True, True, False, not reopened]


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_a_broadcast_gives_each_consumer_all_records_in_flight(consumers: int) -> None:
    broadcast = edge_by(Broadcast())
    for subtask in repartitioned("hash", ["key"], broadcast, consumers)[2:]:
        buffers = [b for h in subtask.inflight for b in h.buffers]
        assert sum(b.rows for b in buffers) == 8
        assert not any(b.filters for b in buffers)


@pytest.mark.parametrize(
    ("was", "now", "replayed"),
    [
        ("broadcast", BY_KEY, False),
        ("a kind of a later version", BY_KEY, False),
        ("rebalance", edge_by(Broadcast()), True),
        ("custom", BY_KEY, True),
        ("hash", edge_by(Rebalance()), True),
    ],
)
def test_a_change_that_cannot_be_made_good_is_refused(
    was: str, now: NewEdge, replayed: bool
) -> None:
    with pytest.raises(Incompatible) as caught:
        repartitioned(was, [], now, 2, replayed=replayed)
    assert f"whose partitioner was {was} and is now {now.partitioner.name}" in str(caught.value)
    assert "between an aligned checkpoint and its restore" in str(caught.value)
