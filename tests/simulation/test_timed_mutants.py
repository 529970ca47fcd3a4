"""Bugs in windows, joins, timers and connected streams are planted: each must be found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.jobs.graphs import Graph, Kind

from .planted import assert_found
from .test_alarms import ALARMS
from .test_windows import GRAPHS, scenario_of
from .timed_mutants import MUTANTS

#: {mutant: a seed that found it}, tried first.
KNOWN: dict[str, int] = {
    "alarms_fire_again_after_a_restore": 27,
    "broadcast_state_is_frozen_with_what_running_work_wrote": 27,
    "broadcast_state_is_not_restored": 3,
    "a_rescaled_session_join_forgets_moved_keys": 49,
    "index_of_what_is_due_is_not_restored": 3,
    "restored_keys_of_an_aggregate_do_not_expire": 2,
    "rows_of_moved_key_groups_are_dropped": 105,
    "sessions_are_not_restored_beside_their_records": 12,
    "sides_are_mixed_up_by_a_restore": 3,
    "ttl_is_judged_by_the_clock": 0,
    "when_state_was_written_is_not_restored": 56,
    "who_has_met_is_forgotten_by_a_restore": 9,
}
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def graph_of(kind: Kind) -> Graph:
    return next(graph for graph in (*GRAPHS, ALARMS) if any(t.kind is kind for t in graph.tasks))


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_bug_that(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    kind, mutant = MUTANTS[name]
    graph, known = graph_of(kind), KNOWN.get(name, 0)

    def violation_of(seed: int) -> str:
        return World(seed, scenario_of(graph, seed)).run().violation

    assert_found(mutant, violation_of, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)
