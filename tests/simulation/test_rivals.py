"""Two coordinators of one job: one was frozen and taken for dead, another was started beside it,
and then it wakes up.

One wins, the other stops; nothing is committed twice or lost.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace.engine.simulation.campaign.faults import FREEZE_POINTS, CrashPoint, no_faults
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.scheduler import MILLISECOND_NS


def test_of_two_coordinators_one_wins_and_nothing_is_committed_twice_or_lost() -> None:
    met: Counter[str] = Counter()
    for seed in range(16):
        scenario = draw_scenario(random.Random(f"rivals {seed}"), faults=False)
        profile = replace(no_faults(), until_ns=300 * MILLISECOND_NS, pauses=2.5)
        report = World(seed, replace(scenario, profile=profile)).run()
        assert not report.violation, f"seed {seed}"
        met.update(report.coverage)
    assert met["coordinator paused"] > 8
    assert met["coordinator gave way to a rival"] > 2


@pytest.mark.parametrize("effect", FREEZE_POINTS)
def test_what_a_coordinator_does_when_it_wakes_at_one_of_its_steps_changes_nothing(
    effect: str,
) -> None:
    """It freezes there; one or two successors work; then it goes on with that very step."""
    frozen = 0
    for seed in range(6):
        rng = random.Random(f"frozen {effect} {seed}")
        scenario = draw_scenario(rng, faults=False)
        times = rng.randint(1, 40 if effect == "store call" else 3)
        point = CrashPoint(effect, seed % 2 == 0, times)
        profile = replace(
            no_faults(), until_ns=900 * MILLISECOND_NS, freezes=(point,), worker_crashes=1.5
        )
        report = World(seed, replace(scenario, profile=profile)).run()
        assert not report.violation, f"seed {seed}, {point}: {report.violation}"
        frozen += report.coverage.get(f"coordinator frozen {point}", 0)
    assert frozen > 0
