"""Runs with many checkpoints, whose storage refuses deletions, or is slower than checkpoints
are waited for.
"""

from __future__ import annotations

import random
from dataclasses import replace

from headrace.engine.simulation.campaign.faults import FaultProfile
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import Report, World
from headrace.engine.simulation.scheduler import MILLISECOND_NS, SECOND_NS


def refusing(seed: int) -> Report:
    """Storage refuses two deletions in five for a while."""
    profile = FaultProfile(
        until_ns=200 * MILLISECOND_NS, deletions_refused=0.4, storage_delay_ns=MILLISECOND_NS // 4
    )
    return _run(seed, profile, timeout_ns=5 * SECOND_NS)


def lagging(seed: int) -> Report:
    """Uploads take up to 40 ms for a while, of which checkpoints wait for 10."""
    profile = FaultProfile(until_ns=200 * MILLISECOND_NS, storage_delay_ns=20 * MILLISECOND_NS)
    return _run(seed, profile, timeout_ns=10 * MILLISECOND_NS)


def _run(seed: int, profile: FaultProfile, *, timeout_ns: int) -> Report:
    scenario = draw_scenario(random.Random(f"scenario {seed}"), faults=False)
    settings = replace(
        scenario.settings,
        checkpoint_interval_ns=3 * MILLISECOND_NS,
        checkpoint_timeout_ns=timeout_ns,
        heartbeat_timeout_ns=SECOND_NS,
        tolerable_failures=1_000_000,
    )
    return World(seed, replace(scenario, settings=settings, profile=profile)).run()
