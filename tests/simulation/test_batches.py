"""Tasks that ask for full batches hold under all faults: rows that wait are in-flight data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.channels.gate import InputChannel
from headrace.channels.partitioners.hash import Hash
from headrace.channels.spilled import Records
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.worker.batches import Batches

from .planted import assert_found
from .test_windows import scenario_of

KEY = Hash(("key",), MAX_PARALLELISM)
PLAIN = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.BATCHES, 3, ((0, KEY),)),
        TaskSpec(Kind.SINK, 2, ((1, KEY),)),
    ),
    rows=60,
    keys=3,
)
#: Windows behind batches: a watermark that overtakes a row makes the row late.
TIMED = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.BATCHES, 3, ((0, KEY),)),
        TaskSpec(Kind.WINDOWS, 2, ((1, KEY),)),
        TaskSpec(Kind.SINK, 1, ((2, KEY),)),
    ),
    rows=60,
    keys=3,
)
SEEDS_MAX = 60


def rows_that_wait_are_not_captured(patch: pytest.MonkeyPatch) -> None:
    begin, captured = Batches.__init__, InputChannel.captured
    waiting: list[InputChannel] = []

    def noted(self: Batches, gate: Any, rule: Any) -> None:
        begin(self, gate, rule)
        waiting.extend(gate.channels.values())

    def hasty(self: InputChannel, end: int) -> tuple[Records, ...]:
        waits = any(self is channel for channel in waiting)
        return () if waits and self.given is None else captured(self, end)

    patch.setattr(Batches, "__init__", noted)
    patch.setattr(InputChannel, "captured", hasty)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def test_what_comes_out_is_what_a_map_puts_out() -> None:
    reference = reference_of(PLAIN)
    assert sum(reference.sinks["sink2"].values()) == PLAIN.rows
    assert len(reference.ordered) == 1, "and in order"


def test_campaigns_draw_them() -> None:
    drawn = [draw_scenario(random.Random(seed)).graph for seed in range(60)]
    assert sum(any(t.kind is Kind.BATCHES for t in graph.tasks) for graph in drawn) >= 5


@pytest.mark.parametrize("graph", [PLAIN, TIMED], ids=["plain", "timed"])
def test_jobs_hold_under_faults_and_changes_of_parallelism(graph: Graph) -> None:
    met = Coverage()
    for seed in range(8):
        report = World(seed, scenario_of(graph, seed)).run()
        assert not report.violation, f"{seed}: {report.violation}"
        met.merge(report.coverage)
    assert met.counts["full batches"]
    assert met.counts["batches in part"]


@pytest.mark.mutant
def test_the_simulation_finds_rows_that_wait_and_are_not_captured(
    monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    def violation_of(seed: int) -> str:
        return World(seed, scenario_of(PLAIN, seed)).run().violation

    plant = rows_that_wait_are_not_captured
    assert_found(plant, violation_of, 0, monkeypatch, seeds_max=SEEDS_MAX, long=long)
