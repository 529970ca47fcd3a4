"""What nobody can name goes soon; each bug that leaves something, or takes too much, is found."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain

import pytest

from headrace.engine.simulation.campaign.world import Report, simulate

from .leak_mutants import MUTANTS
from .leak_search import lagging, refusing
from .mutants import SLIPS

Search = Callable[[int], Report]

#: {mutant: how it is looked for, and a seed that found it}; tried first.
KNOWN: dict[str, tuple[Search, int]] = {
    "a_refused_deletion_is_forgotten": (refusing, 4),
    "credit_for_a_dropped_buffer_is_not_given_back": (simulate, 1),
    "files_go_although_metadata_stays": (refusing, 4),
    "metadata_that_storage_kept_is_forgotten": (refusing, 3),
    "the_job_ends_without_a_last_sweep": (simulate, 7),
    "what_comes_late_is_not_looked_for_again": (lagging, 46),
    "what_is_kept_for_others_is_kept_for_ever": (simulate, 0),
}
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("headrace"), "disabled", True)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_leak_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search, known = KNOWN[name]
    assert not search(known).violation, "the engine is at fault, not the mutant"
    MUTANTS[name](monkeypatch)
    found = (search(seed).violation for seed in chain((known,), range(SEEDS_MAX)))
    violation = next(filter(None, found), "")
    assert violation, f"no violation in {SEEDS_MAX} seeds"
    assert not violation.startswith(SLIPS), violation


@pytest.mark.parametrize("search", [refusing, lagging])
def test_storage_that_refuses_or_lags_is_survived(search: Search) -> None:
    reports = [search(seed) for seed in range(4)]
    assert [report.violation for report in reports] == [""] * 4
    assert sum(report.coverage.get("rounds of deletion", 0) for report in reports) > 0


def test_refused_deletions_extend_the_time() -> None:
    """Otherwise rounds would pass in which nothing could be deleted."""
    assert refusing(4).coverage["rounds in which a deletion was refused"] > 0
