"""Bugs in loops are planted: each must be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import Graph, Kind, TaskSpec
from headrace.engine.simulation.scheduler import MILLISECOND_NS

from .loop_mutants import MUTANTS
from .planted import Search, assert_found
from .test_loops import KEY, looped, scenario_of

#: {mutant: a seed that found it}, tried first.
KNOWN: dict[str, int] = {
    "aligned_cuts_forget_what_back_edges_have_left_to_replay": 2,
    "alignment_waits_for_back_edges": 2,
    "back_edges_are_not_captured": 2,
    "capture_of_back_edges_ends_at_the_cut": 2,
}
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def aligned(seed: int) -> str:
    """A run of aligned checkpoints."""
    scenario = scenario_of(looped(2), seed, CheckpointMode.ALIGNED)
    return World(seed, scenario).run().violation


def crossed(seed: int) -> str:
    """The same, where a barrier may go round before the other head has its own."""
    graph = Graph(
        (
            TaskSpec(Kind.SOURCE, 2),
            TaskSpec(Kind.HEAD, 3, ((0, KEY),), ((2, Rebalance()),)),
            TaskSpec(Kind.AGAIN, 3, ((1, Forward()),)),
            TaskSpec(Kind.LEAVE, 3, ((1, Forward()),)),
            TaskSpec(Kind.SINK, 1, ((3, KEY),)),
        ),
        rows=80,
        keys=2,
    )
    scenario = scenario_of(graph, seed, CheckpointMode.ALIGNED)
    limits = replace(scenario.settings.limits, alignment_timeout_ns=None, work_rows_max=4)
    settings = replace(scenario.settings, limits=limits, slow_tasks=frozenset({1}), workers=3)
    return World(seed, replace(scenario, settings=settings)).run().violation


def crashing(seed: int) -> str:
    """The same with a slow head and frequent crashes: a replay meets the next barrier."""
    scenario = scenario_of(looped(2, rows=80), 2 * seed, CheckpointMode.ALIGNED)
    limits = replace(scenario.settings.limits, alignment_timeout_ns=None, work_rows_max=1)
    settings = replace(
        scenario.settings,
        limits=limits,
        slow_tasks=frozenset({1}),
        checkpoint_interval_ns=10 * MILLISECOND_NS,
    )
    profile = replace(no_faults(), until_ns=800 * MILLISECOND_NS, worker_crashes=4.0)
    return World(seed, replace(scenario, settings=settings, profile=profile)).run().violation


def crowded(seed: int) -> str:
    """A run without faults whose input is many times what its channels hold. The head has three
    entries, so that a turn each would bring in more than the loop lets out.
    """
    tasks = (
        *[TaskSpec(Kind.SOURCE, 1)] * 3,
        TaskSpec(Kind.HEAD, 1, tuple((source, KEY) for source in range(3)), ((4, Forward()),)),
        TaskSpec(Kind.AGAIN, 1, ((3, Forward()),)),
        TaskSpec(Kind.LEAVE, 1, ((3, Forward()),)),
        TaskSpec(Kind.SINK, 1, ((5, KEY),)),
    )
    graph = Graph(tasks, rows=60, keys=3)
    scenario = scenario_of(graph, 2 * seed, CheckpointMode.UNALIGNED)
    limits = replace(
        scenario.settings.limits, window_bytes=96, queue_bytes_max=64, work_rows_max=1, debloat=None
    )
    settings = replace(scenario.settings, limits=limits, workers=1)
    return World(seed, replace(scenario, settings=settings, profile=no_faults())).run().violation


SEARCHES: dict[str, Search] = {
    "aligned_cuts_forget_what_back_edges_have_left_to_replay": crashing,
    "back_edges_give_credit_for_committed_records": crowded,
    "early_back_edges_are_not_blocked": crossed,
    "entries_are_always_admitted": crowded,
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_bug_that(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    known = KNOWN.get(name, 0)
    search = SEARCHES.get(name, aligned)
    assert_found(MUTANTS[name], search, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)
