"""Failures in a row: a job with full queues that is killed in every recovery, before its replay
is over, still gets on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from headrace.engine.coordinator.checkpoints import Checkpoints
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.scheduler import MILLISECOND_NS
from headrace.engine.simulation.watch import Watch
from headrace.recovery.replays import RestoredReplay

from .interrupted import Interrupted, scenario
from .leak_mutants import MUTANTS

KILLS = 6
RESTARTS = 20
#: A checkpoint or two.
SHORT_LIFE_NS = 20 * MILLISECOND_NS
CHAINS = pytest.mark.parametrize("parallelism", [(2,), (2, 3, 1, 2)], ids=["as it is", "rescaled"])


def standstills(world: Interrupted) -> list[int]:
    """Which recoveries in a row completed no checkpoint, or got no further by those that they
    completed.
    """
    left = [kill.left for kill in world.kills]
    return [number for number, (before, after) in enumerate(pairwise(left)) if after >= before]


@CHAINS
def test_every_recovery_that_is_cut_short_gets_the_job_further(parallelism: Sequence[int]) -> None:
    world = Interrupted(0, scenario(0, parallelism), KILLS)
    report = world.run()
    assert report.violation == ""
    assert len(world.kills) == KILLS
    assert all(kill.replaying for kill in world.kills[1:]), "killed in the midst of the replay"
    assert standstills(world) == []
    assert report.coverage.get("rescaled restores", 0) == len(parallelism) - 1


def in_flight_after_restarts() -> list[int]:
    """How many records are in flight at the newest checkpoint, restart after restart."""
    world = Interrupted(0, scenario(0, (2,)), RESTARTS, SHORT_LIFE_NS)
    assert world.run().violation == ""
    assert len(world.kills) == RESTARTS
    return [kill.in_flight for kill in world.kills]


def test_restarts_in_a_row_add_nothing_to_what_is_in_flight() -> None:
    first, *later = in_flight_after_restarts()
    assert max(later) <= first, later


def test_restarts_that_fill_the_queues_anew_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["what_is_left_to_replay_costs_no_credit"](monkeypatch)
    monkeypatch.setattr(Watch, "_check_nothing_new", lambda *_: None)
    monkeypatch.setattr(RestoredReplay, "problems", lambda *_: [])
    first, *later = in_flight_after_restarts()
    assert max(later) > 1.5 * first, later


def test_a_job_that_checkpoints_only_what_has_recovered_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FLIP-547: checkpointing during recovery."""
    trigger_due = Checkpoints.trigger_due
    worlds: list[World] = []

    def recovered(self: Checkpoints, now_ns: int, **arguments: Any) -> Any:
        watch = worlds[0].env.watch
        assert isinstance(watch, Watch), "a campaign's"
        logs = watch._attempts[self._epoch].replaying.values()
        if all(end.is_over for end in logs):
            return trigger_due(self, now_ns, **arguments)
        self._schedule.triggered(now_ns)
        return []

    monkeypatch.setattr(Checkpoints, "trigger_due", recovered)
    world = Interrupted(0, scenario(0, (2,)), KILLS)
    worlds.append(world)
    assert world.run().violation == ""
    assert len(standstills(world)) >= KILLS - 2
