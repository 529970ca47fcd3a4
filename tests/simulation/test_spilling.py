"""Blocked channels that spill: no violation, and every planted bug is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from headrace.engine.simulation.campaign.spilling import spill_scenario
from headrace.engine.simulation.campaign.world import World

from .planted import assert_found
from .spill_mutants import MUTANTS

#: {mutant: a seed that found it}, tried first.
KNOWN: dict[str, int] = {
    "a_checkpoint_holds_another_run": 2,
    "a_failed_write_loses_its_records": 27,
    "a_spilled_run_is_deleted_before_it_is_read": 2,
    "a_spilled_run_is_deleted_before_the_checkpoint_is_written": 53,
    "a_spilled_run_is_missing_in_the_checkpoint": 2,
    "a_spilled_run_is_out_of_order": 3,
    "credit_is_granted_while_memory_is_full": 2,
    "the_tail_goes_before_the_run": 0,
}
SEEDS_MAX = 200
#: Of what a few runs must meet.
REQUIRED = (
    "spilled runs written",
    "spilled runs read",
    "spilled runs deleted",
    "spilled runs not written",
    "spilled runs torn",
    "records on local disk in cuts",
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def by_spilling(seed: int) -> str:
    """Runs in which blocked channels spill."""
    return World(seed, spill_scenario(seed)).run().violation


def test_runs_with_a_full_and_a_torn_disk_keep_every_promise() -> None:
    met: Counter[str] = Counter()
    for seed in (7, 60, 151):
        report = World(seed, spill_scenario(seed)).run()
        assert not report.violation, (seed, report.violation)
        met.update(report.coverage)
    assert [name for name in REQUIRED if not met[name]] == []


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_finds_the_bug_that(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    known = KNOWN.get(name, 0)
    assert_found(MUTANTS[name], by_spilling, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)
