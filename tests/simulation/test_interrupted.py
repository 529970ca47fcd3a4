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

from .interrupted import Interrupted, scenario

KILLS = 6
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


def test_a_job_that_checkpoints_only_what_has_recovered_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FLIP-547: checkpointing during recovery."""
    trigger_due = Checkpoints.trigger_due
    worlds: list[World] = []

    def recovered(self: Checkpoints, now_ns: int, **arguments: Any) -> Any:
        logs = worlds[0].env.watch._attempts[self._epoch].replaying.values()
        if all(end.is_over for end in logs):
            return trigger_due(self, now_ns, **arguments)
        self._schedule.triggered(now_ns)
        return []

    monkeypatch.setattr(Checkpoints, "trigger_due", recovered)
    world = Interrupted(0, scenario(0, (2,)), KILLS)
    worlds.append(world)
    assert world.run().violation == ""
    assert len(standstills(world)) >= KILLS - 2
