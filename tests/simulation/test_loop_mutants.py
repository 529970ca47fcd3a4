"""Bugs in loops are planted: each must be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.world import World

from .loop_mutants import MUTANTS
from .planted import Search, assert_found
from .test_loops import looped, scenario_of

#: {mutant: a seed that found it}, tried first.
KNOWN: dict[str, int] = {}
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def aligned(seed: int) -> str:
    """A run of aligned checkpoints."""
    scenario = scenario_of(looped(2), seed, CheckpointMode.ALIGNED)
    return World(seed, scenario).run().violation


def crowded(seed: int) -> str:
    """A run without faults whose input is many times what its channels hold."""
    scenario = scenario_of(looped(1, rows=240), 2 * seed, CheckpointMode.UNALIGNED)
    limits = replace(
        scenario.settings.limits, window_bytes=64, queue_bytes_max=64, work_rows_max=4, debloat=None
    )
    settings = replace(scenario.settings, limits=limits)
    return World(seed, replace(scenario, settings=settings, profile=no_faults())).run().violation


SEARCHES: dict[str, Search] = {
    "entries_are_always_admitted": crowded,
    "back_edges_give_credit_for_committed_records": crowded,
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_bug_that(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    known = KNOWN.get(name, 0)
    search = SEARCHES.get(name, aligned)
    assert_found(MUTANTS[name], search, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)
