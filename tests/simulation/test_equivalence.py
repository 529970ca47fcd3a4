"""Every mode shows the same output, and a mode that does not is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.campaign import equivalence
from headrace.engine.simulation.campaign.campaign import run_campaign
from headrace.engine.simulation.campaign.equivalence import compare_modes, variants
from headrace.engine.simulation.campaign.scenario import Scenario
from headrace.engine.simulation.jobs.reference import reference_of


def test_ten_seeds_show_the_same_in_every_mode() -> None:
    result = run_campaign(range(10), jobs=1, compared=True)
    assert result.violations == {}
    assert result.coverage.counts["records persisted in flight, input"]


def test_all_modes_run_the_same_job() -> None:
    scenarios = variants(3)
    assert {s.settings.mode for s in scenarios.values()} == set(CheckpointMode)
    assert len({s.graph for s in scenarios.values()}) == 1


def test_a_mode_that_shows_something_else_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(seed: int) -> dict[str, Scenario]:
        found = variants(seed)
        graph = replace(found["unaligned"].graph, rows=found["unaligned"].graph.rows + 1)
        reference = reference_of(graph)
        other = replace(found["unaligned"], graph=graph, reference=reference)
        return found | {"unaligned": other}

    monkeypatch.setattr(equivalence, "variants", differing)
    assert compare_modes(1).violation.startswith("unaligned: aligned shows")
