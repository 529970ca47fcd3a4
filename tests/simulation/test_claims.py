"""Claims in the simulation: they are made, released, and what is wrong with one is seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.coordinator.retention import Retention
from headrace.engine.drivers import coordinator_performer
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import Report, World
from headrace.recovery import claims

#: Jobs whose first checkpoint holds records in flight.
SEEDS = (42, 43, 44, 46, 48, 51)


#: Jobs that replay what was in flight beyond their first checkpoint.
REPLAYED_LONG = (69, 164)


def run(seed: int, *, retain: int = 1, claim_after: int = 1) -> Report:
    rng = random.Random(f"scenario {seed}")
    scenario = draw_scenario(rng, mode=CheckpointMode.UNALIGNED)
    settings = replace(
        scenario.settings,
        claim_after=claim_after,
        savepoints=0,
        retain=retain,
        checkpoint_interval_ns=10_000_000,
        slow_tasks=frozenset(range(len(scenario.graph.tasks))),
    )
    quiet = replace(scenario, settings=settings, profile=no_faults(), drain_ns=None, rescales=())
    return World(seed, quiet).run()


def violations(**options: int) -> Iterator[str]:
    """What is wrong in one run after the other."""
    return (run(seed, **options).violation for seed in SEEDS)


def test_what_is_claimed_is_released() -> None:
    reports = [run(seed) for seed in SEEDS]
    assert {report.violation for report in reports} == {""}
    assert sum(r.coverage.get("checkpoints claimed", 0) for r in reports) == len(SEEDS)
    assert sum(r.coverage.get("claims released", 0) for r in reports) == len(SEEDS)


def test_what_is_retained_is_kept() -> None:
    report = run(SEEDS[0], retain=100)
    assert report.violation == ""
    assert report.coverage["claims kept until the end"] == 1


@pytest.mark.mutant
def test_a_claim_that_goes_while_it_is_replayed_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not any(run(seed).violation for seed in REPLAYED_LONG)
    monkeypatch.setattr(Retention, "started", lambda self, metadata, epoch: None)
    assert all("there still" in run(seed).violation for seed in REPLAYED_LONG)


@pytest.mark.mutant
def test_a_claim_that_nobody_releases_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "_release", lambda self: [])
    assert any("is subsumed, and still claimed" in violation for violation in violations())


@pytest.mark.mutant
def test_a_claim_that_is_forgotten_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    release = coordinator_performer.release_claim

    def forgetful(*what: Any, **how: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(claims, "release", lambda *_: None)
            return release(*what, **how)

    monkeypatch.setattr(coordinator_performer, "release_claim", forgetful)
    assert any("was released, and left are" in violation for violation in violations())


@pytest.mark.mutant
def test_files_that_others_there_name_and_that_go_are_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "_named", lambda *_: set())
    found = violations(claim_after=3, retain=3)
    assert any("is deleted, which earlier/" in violation for violation in found)
