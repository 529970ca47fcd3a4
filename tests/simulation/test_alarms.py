"""Processing-time timers in simulated jobs, which go by the simulation's clock, under all
faults.
"""

from __future__ import annotations

from headrace.channels.partitioners.hash import Hash
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import reference_of

from .test_windows import scenario_of

KEY = Hash(("key",), MAX_PARALLELISM)
ALARMS = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.ALARMS, 3, ((0, KEY),)),
        TaskSpec(Kind.SINK, 2, ((1, KEY),)),
    ),
    rows=60,
    keys=3,
)


def test_what_comes_out_is_what_came_in() -> None:
    reference = reference_of(ALARMS)
    assert sum(reference.sinks["sink2"].values()) == ALARMS.rows


def test_jobs_hold_under_faults_and_changes_of_parallelism() -> None:
    violations = {
        seed: report.violation
        for seed in range(8)
        if (report := World(seed, scenario_of(ALARMS, seed)).run()).violation
    }
    assert violations == {}
