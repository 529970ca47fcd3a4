"""A run from the outside: it finishes, says what it met, and gives up on what does not move."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.engine.simulation.campaign import world
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World, simulate
from headrace.engine.simulation.jobs.graphs import Kind


def test_a_run_without_faults_completes_checkpoints_and_restarts_nothing() -> None:
    reports = [simulate(seed, faults=False) for seed in range(5)]
    assert all(report.coverage["checkpoints completed"] for report in reports)
    assert not any(report.coverage.get("restarts") for report in reports)


def test_a_trace_is_shown_on_request_and_changes_nothing() -> None:
    lines: list[str] = []
    assert simulate(2, show=lines.append) == simulate(2)
    assert "source" in lines[0]
    assert len(lines) > 50


def test_a_job_that_does_not_finish_in_time_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world, "_STEPS_MAX", 20)
    assert simulate(2).violation.startswith("no progress")


def test_output_that_differs_from_the_reference_is_a_violation() -> None:
    scenario = draw_scenario(random.Random(1), faults=False)
    assert scenario.graph.tasks[0].kind is Kind.SOURCE
    scenario = replace(scenario, graph=replace(scenario.graph, rows=scenario.graph.rows + 1))
    assert "extra" in World(1, scenario).run().violation
