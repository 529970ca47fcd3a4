"""Savepoints in the simulation: they are taken, started from, and what is wrong with one is
seen.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.savepoints import Savepoints
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.sink import TransactionStatus

SEED = 6


def world(savepoints: int) -> World:
    scenario = draw_scenario(random.Random(f"scenario {SEED}"))
    settings = replace(scenario.settings, savepoints=savepoints)
    return World(SEED, replace(scenario, settings=settings, profile=no_faults()))


def test_savepoints_are_taken_and_started_from() -> None:
    report = world(5).run()
    assert report.violation == ""
    assert report.coverage["savepoints completed"] > 0
    assert report.coverage["savepoints started from"] == 1


def test_a_savepoint_whose_transactions_are_open_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    completed = Savepoints.completed

    def undone(self: Savepoints, request: int, number: int) -> None:
        for transaction in self._world.env.sinks.transactions.values():
            transaction.status = TransactionStatus.PREPARED
        completed(self, request, number)

    monkeypatch.setattr(Savepoints, "completed", undone)
    assert "is complete before" in world(5).run().violation


def test_a_savepoint_that_cannot_be_started_from_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = world(5)
    monkeypatch.setattr(Savepoints, "_restarted", lambda self, number: "its data is gone")
    assert subject.run().violation.endswith("its data is gone")
