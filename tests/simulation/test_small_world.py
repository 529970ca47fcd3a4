"""The world of a small scope moves one thing at a time."""

from __future__ import annotations

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.exploration import small_worker
from headrace.engine.simulation.exploration.small_scope import Scope
from headrace.engine.simulation.exploration.small_world import (
    DEAD,
    LEFT,
    Row,
    SmallWorld,
    W,
)

SCOPE = Scope(CheckpointMode.ALIGNED, rows=(0, 0), periodic=0)


def last(world: SmallWorld, way: int) -> Row:
    """Where it ends if always the move number `way`, counted round, is made."""
    row, moves = world.start(), [world.start()]
    while moves:
        row = moves[way % len(moves)]
        moves = [then for _, then in world.successors(row)]
    return row


def labels(world: SmallWorld, row: Row) -> list[object]:
    return [label[0] for label, _ in world.successors(row) if isinstance(label, tuple)]


def test_workers_that_register_wait_until_storage_has_answered_the_start() -> None:
    world = SmallWorld(SCOPE)
    assert labels(world, world.start()) == ["storage answers"]
    ((_, begun),) = world.successors(world.start())
    assert labels(world, begun) == ["hear", "hear", "sinks answer"]


def test_moves_of_different_processes_commute() -> None:
    world = SmallWorld(SCOPE)
    ((_, begun),) = world.successors(world.start())
    (_, one), (_, other), *_ = world.successors(begun)
    after_one = {then for _, then in world.successors(one)}
    assert after_one & {then for _, then in world.successors(other)}


def test_every_way_ends_with_the_job() -> None:
    world = SmallWorld(SCOPE)
    for way in range(8):
        world.check_end(last(world, way))


def test_a_process_can_die_as_often_as_the_scope_says() -> None:
    world = SmallWorld(Scope(CheckpointMode.ALIGNED, rows=(0, 0), crashes=1, victims=(1,)))
    deaths = [then for label, then in world.successors(world.start()) if label == (1, "dies")]
    assert [(row[W + 1], row[LEFT]) for row in deaths] == [(DEAD, 0)]
    world.check_end(last(world, -1))


def outcomes(world: SmallWorld) -> tuple[set[object], int]:
    """How the job may end in storage and at the sinks, and through how many states."""
    start = world.start()
    seen, left = {start}, [start]
    found: set[object] = set()
    while left:
        row = left.pop()
        following = [then for _, then in world.successors(row)]
        if not following:
            world.check_end(row)
            found.add(world.outcome(row))
        left += {then for then in following if then not in seen}
        seen.update(following)
    return found, len(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scope",
    [
        Scope(CheckpointMode.ALIGNED, rows=(1, 0)),
        Scope(CheckpointMode.UNALIGNED, rows=(0, 0)),
        Scope(CheckpointMode.ALIGNED, rows=(0, 0), periodic=0, crashes=1, victims=(1,)),
    ],
)
def test_with_and_without_what_commutes_the_job_ends_in_the_same_ways(scope: Scope) -> None:
    all_, states = outcomes(SmallWorld(scope, reduced=False))
    reduced, fewer = outcomes(SmallWorld(scope))
    assert reduced == all_
    assert len(reduced) > 1
    assert fewer < 0.85 * states


@pytest.mark.slow
def test_forgotten_credit_is_missed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = Scope(CheckpointMode.ALIGNED, rows=(1, 0))
    forgotten, fewer = outcomes(SmallWorld(scope))
    monkeypatch.setattr(small_worker, "forgets_credit", lambda scope: False)
    known, states = outcomes(SmallWorld(scope))
    assert forgotten == known
    assert fewer < states
