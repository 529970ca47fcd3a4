"""Draining: what was read comes out, worked on to its end, and nothing else, whatever goes
wrong meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.scheduler import MILLISECOND_NS


def test_a_drained_job_puts_out_what_it_had_read_and_nothing_else() -> None:
    met: Counter[str] = Counter()
    for seed in range(25):
        rng = random.Random(f"drained {seed}")
        scenario = draw_scenario(rng)
        drain_ns = rng.randint(1, 80) * MILLISECOND_NS
        report = World(seed, replace(scenario, drain_ns=drain_ns)).run()
        assert not report.violation, f"seed {seed}"
        met.update(report.coverage)
    assert met["jobs drained before their end"] > 10
    assert met["restarts"] > 5
