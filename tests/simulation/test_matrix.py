"""The rescale matrix in short: every pair of parallelisms once.

`make rescale-matrix` runs 200 seeds of each.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.registry import wire_names
from headrace.engine.simulation.campaign.matrix import (
    CHAINS,
    EDGES,
    OPERATORS,
    PARALLELISM_MAX,
    PairResult,
    line_of,
    pair_scenario,
    run_matrix,
    run_pair,
)
from headrace.recovery import assignment, redistribution

EVERY = range(1, PARALLELISM_MAX + 1)


def test_the_seeds_of_a_pair_take_every_edge_and_some_go_back() -> None:
    scenarios = [pair_scenario(seed, 2, 3) for seed in range(len(EDGES))]
    readers = {tuple(p.name for _, p in s.graph.tasks[-2].inputs) for s in scenarios}
    assert len(readers) >= len(EDGES) - 1
    assert {len(s.rescales) for s in scenarios} == {1, 2}
    assert any(isinstance(p, Forward) for s in scenarios for _, p in s.graph.tasks[-2].inputs)


def test_every_second_round_of_seeds_takes_ranges_for_custom_functions() -> None:
    first, second = (
        {
            p.name
            for s in seeds
            for task in pair_scenario(s, 2, 3).graph.tasks
            for _, p in task.inputs
        }
        for seeds in (range(len(EDGES)), range(len(EDGES), 2 * len(EDGES)))
    )
    assert first == set(wire_names()) - {"range"}
    assert second == set(wire_names()) - {"custom"}


@pytest.mark.parametrize("old", EVERY)
def test_every_pair_keeps_every_promise_on_some_edge(old: int) -> None:
    # Of every pair one in two; `make rescale-matrix` has all.
    for new in range(1 + old % 2, PARALLELISM_MAX + 1, 2):
        # The edges take turns over the pairs, with a custom function and with ranges.
        result = run_pair(old, new, [(old * PARALLELISM_MAX + new) % (2 * len(EDGES))])
        assert not result.violations, line_of(result)


def test_pairs_are_run_in_processes_and_told_in_order() -> None:
    results = list(run_matrix([(2, 1), (1, 2)], range(1), jobs=2))
    assert [(result.old, result.new, result.runs) for result in results] == [(2, 1, 1), (1, 2, 1)]
    assert not any(result.violations for result in results)


def test_what_is_not_filtered_fails_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfiltered(handle: Any, parallelism: int, subtask: int) -> Any:
        return handle

    monkeypatch.setattr(redistribution, "_filtered", unfiltered)
    hashed = list(EDGES).index("hash")
    result = run_pair(2, 3, range(hashed + len(EDGES), 60, len(EDGES)))
    assert result.failed
    assert "doubled" in line_of(result)


def test_operators_that_look_at_time_or_a_second_stream_keep_every_promise() -> None:
    count = len(OPERATORS)
    seeds = [*range(0, count, 2), *range(count + 1, 2 * count, 2)]
    result = run_pair(2, 3, seeds, operators=True)
    assert not result.failed, line_of(result)


def test_keys_keep_their_order_over_forward_edges_behind_keyed_tasks() -> None:
    for old, new in ((1, 4), (4, 1), (2, 3)):
        result = run_pair(old, new, range(len(CHAINS)), chains=True)
        assert not result.failed, line_of(result)
        assert result.counts["replays in waves"], line_of(result)


#: Seeds of 2 -> 3 that once showed a record of a key behind a newer one.
DISORDERED = (3, 5, 8)


@pytest.mark.parametrize("seed", DISORDERED)
def test_the_seed_finds_forward_edges_that_are_replayed_without_waves(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "waves_of", lambda *_: {})
    (violation,) = run_pair(2, 3, [seed], chains=True).violations.values()
    assert "comes after" in violation


def test_a_pair_in_which_nothing_was_in_flight_has_proven_nothing() -> None:
    assert PairResult(1, 2, runs=1).failed
