"""Runs whose state lies in databases, and bugs that are planted there: each must be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from headrace.engine.simulation.campaign.world import simulate

from .database_mutants import MUTANTS
from .planted import assert_found, by_campaign

#: {mutant: a seed that found it}, tried first.
KNOWN: dict[str, int] = {
    "a_checkpoint_that_is_given_up_takes_shared_files_along": 30,
    "a_merged_file_takes_the_name_of_one_that_it_replaces": 311,
    "files_of_a_snapshot_hold_what_was_written_after_it": 158,
    "files_of_the_attempt_before_are_known_by_their_names": 158,
    "no_checkpoint_is_full": 334,
    "one_of_several_databases_is_restored": 135,
    "registry_counts_only_the_newest_checkpoint": 48,
    "workers_overhear_that_a_checkpoint_is_full": 334,
}
SEEDS_MAX = 300


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def test_twenty_seeds_keep_every_promise_and_merge_files() -> None:
    met: Counter[str] = Counter()
    for seed in range(20, 40):
        report = simulate(seed)
        assert not report.violation, f"seed {seed}"
        met.update(report.coverage)
    assert met["database files merged"]
    assert met["files named that an unfinished checkpoint stored"]


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_bug_that(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    assert_found(
        MUTANTS[name], by_campaign(), KNOWN[name], monkeypatch, seeds_max=SEEDS_MAX, long=long
    )
