"""Bugs put into the framework on purpose: a system that runs and fails must find each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.recovery.frontiers import fixed_point, monitor
from headrace.recovery.frontiers.fixed_point import Choice
from headrace.recovery.frontiers.frontier import EVERYTHING, NOTHING, Frontier
from headrace.recovery.frontiers.processors import Checkpoint, Checkpointed

from .system import Inconsistent, System
from .test_figures import notified

RUNS = 150
STEPS = 60


def test_no_run_is_inconsistent() -> None:
    went_back = 0
    for seed in range(RUNS):
        system = System(seed)
        system.run(STEPS)
        went_back += any(system.trimmed.values())
    assert went_back > RUNS // 3, "some logs are trimmed"


def delivered_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoint, "delivered_on", lambda self, edge: NOTHING)


def discarded_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpointed, "discarded", lambda self, edge, checkpoint: NOTHING)


def more_is_fixed_than_was_sent(patch: pytest.MonkeyPatch) -> None:
    whole = Checkpointed.fixed

    def fixed(self: Checkpointed, edge: str, checkpoint: Checkpoint) -> Frontier:
        found = whole(self, edge, checkpoint)
        count = found.bound(edge)
        return Frontier({edge: (count[0] + 1,)}) if count and found != EVERYTHING else found

    patch.setattr(Checkpointed, "fixed", fixed)


def one_neighbour_is_never_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fixed_point._FixedPoint, "_neighbours", lambda self, name: {})


def checkpoints_above_a_rollback_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(monitor.Monitor, "rolled_back", lambda self, choice: None)


@pytest.mark.parametrize(
    "plant",
    [
        delivered_is_left_out,
        discarded_is_left_out,
        more_is_fixed_than_was_sent,
        one_neighbour_is_never_looked_at_again,
        checkpoints_above_a_rollback_stay,
    ],
)
def test_the_system_finds_that(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(RUNS):
            System(seed).run(STEPS)


def test_a_log_that_is_trimmed_one_too_far_is_found() -> None:
    with pytest.raises((Inconsistent, AssertionError), match=r"behind|are gone"):
        for seed in range(RUNS):
            System(seed, trim_more=1).run(STEPS)


def test_figure_5_finds_that_notifications_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(self: object, name: object) -> bool:
        return False

    monkeypatch.setattr(fixed_point._FixedPoint, "_settle_notifications", settled)
    choice: Choice = notified(heeded=True)
    assert choice.frontier("y") != NOTHING
