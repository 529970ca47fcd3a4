"""What nobody can name goes soon; each bug that leaves something, or takes too much, is found."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from headrace.engine.simulation.campaign.world import Report, simulate

from .leak_mutants import MUTANTS
from .leak_search import lagging, refusing
from .planted import assert_found

Search = Callable[[int], Report]

#: {mutant: how it is looked for, and a seed that found it}; tried first.
KNOWN: dict[str, tuple[Search, int]] = {
    "a_refused_deletion_is_forgotten": (refusing, 1),
    "credit_for_a_dropped_buffer_is_not_given_back": (simulate, 4),
    "files_go_although_metadata_stays": (refusing, 3),
    "metadata_that_storage_kept_is_forgotten": (refusing, 3),
    "the_job_ends_without_a_last_sweep": (simulate, 33),
    "what_comes_late_is_not_looked_for_again": (lagging, 101),
    "what_is_left_to_replay_costs_no_credit": (simulate, 103),
    "windows_do_not_share": (simulate, 6),
    "what_is_kept_for_others_is_kept_for_ever": (simulate, 0),
}
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("headrace"), "disabled", True)


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_leak_that(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    run, known = KNOWN[name]

    def violation_of(seed: int) -> str:
        return run(seed).violation

    assert_found(MUTANTS[name], violation_of, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)


@pytest.mark.parametrize("search", [refusing, lagging])
def test_storage_that_refuses_or_lags_is_survived(search: Search) -> None:
    reports = [search(seed) for seed in range(4)]
    assert [report.violation for report in reports] == [""] * 4
    assert sum(report.coverage.get("rounds of deletion", 0) for report in reports) > 0


def test_refused_deletions_extend_the_time() -> None:
    """Otherwise rounds would pass in which nothing could be deleted."""
    assert refusing(4).coverage["rounds in which a deletion was refused"] > 0
