"""Jobs with full queues go from each partitioner to each other, by themselves and before
windows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle
from headrace.engine.simulation.campaign.matrix import pair_scenario
from headrace.engine.simulation.campaign.scenario import Scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import (
    MAX_PARALLELISM,
    RANGES,
    Change,
    Graph,
    Kind,
    TaskSpec,
    by_key,
)
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.recovery import assignment

KEY = Hash(("key",), MAX_PARALLELISM)
PARTITIONERS = [Forward(), Rebalance(), Shuffle(), KEY, Hash(("id",), MAX_PARALLELISM)]
PARTITIONERS += [Custom(by_key), RANGES, Broadcast()]
PAIRS = [
    (old, new)
    for old, new in itertools.permutations(PARTITIONERS, 2)
    if not isinstance(old, Broadcast)
]
#: A change by which records come to subtasks whose event time is ahead, and a seed for that.
MOVING, KNOWN = (Shuffle(), Hash(("id",), MAX_PARALLELISM)), 9
GIVEN_OUT = "records in flight given out by another partitioner"


def scenario_of(
    seed: int, old: Partitioner, new: Partitioner, *, behind: Kind | None, width: int
) -> Scenario:
    """A job whose map is read over `old`, then over `new` by `width` subtasks."""
    drawn = pair_scenario(seed * 9 + 5, 3, width)
    tasks = [TaskSpec(Kind.SOURCE, 3), TaskSpec(Kind.MAP, 3, ((0, old),))]
    if behind is not None:
        tasks.append(TaskSpec(behind, 3, ((1, KEY),)))
    tasks.append(TaskSpec(Kind.SINK, 3, ((len(tasks) - 1, KEY),)))
    graph = Graph(tuple(tasks), rows=60, keys=8, splits=6, changes=(Change(1, 0, new),))
    rescales = tuple(replace(r, parallelism=(width,) * len(tasks)) for r in drawn.rescales)
    settings = replace(drawn.settings, slow_tasks=frozenset(range(1, len(tasks))))
    return Scenario(graph, reference_of(graph), settings, drawn.profile, rescales)


def violation_of(seed: int, kind: Kind) -> str:
    """A run in which windows or the like stand behind the change."""
    old, new = MOVING if seed == KNOWN else PAIRS[seed]
    return World(seed, scenario_of(seed, old, new, behind=kind, width=3)).run().violation


def test_changes_keep_every_promise_at_any_parallelism() -> None:
    violations, coverage = {}, Counter[str]()
    for seed, (old, new) in list(enumerate(PAIRS))[::3]:
        report = World(seed, scenario_of(seed, old, new, behind=None, width=2 + seed % 3)).run()
        coverage.update(report.coverage)
        if report.violation:
            violations[seed, old.name, new.name] = report.violation
    assert violations == {}
    assert coverage[GIVEN_OUT] > len(PAIRS)


@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.LATE, Kind.LIVES])
def test_event_time_behind_a_change_waits_for_the_records_that_moved(kind: Kind) -> None:
    seeds = [KNOWN, *range(1, KNOWN, 7)]
    assert {seed: found for seed in seeds if (found := violation_of(seed, kind))} == {}


@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.LIVES])
def test_event_time_that_stays_ahead_of_records_that_moved_is_noticed(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "check_moved", lambda *_: False)
    assert "missing" in violation_of(KNOWN, kind)
