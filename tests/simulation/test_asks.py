"""Tasks with many calls of a service under way hold under all faults: a call is its record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.channels.partitioners.hash import Hash
from headrace.engine.operators.async_map import AsyncMapOperator
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import reference_of

from .planted import assert_found
from .test_windows import scenario_of

KEY = Hash(("key",), MAX_PARALLELISM)
PLAIN = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.ASKS, 3, ((0, KEY),)),
        TaskSpec(Kind.SINK, 2, ((1, KEY),)),
    ),
    rows=60,
    keys=3,
)
#: Calls whose results keep the order of their key.
ORDERED = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.DROP, 2, ((0, KEY),)),
        TaskSpec(Kind.ASKS, 3, ((1, KEY),)),
        TaskSpec(Kind.SINK, 2, ((2, KEY),)),
    ),
    rows=60,
    keys=3,
)
#: Windows behind calls: a watermark that overtakes a call makes its result late.
TIMED = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.ASKS, 3, ((0, KEY),)),
        TaskSpec(Kind.WINDOWS, 2, ((1, KEY),)),
        TaskSpec(Kind.SINK, 1, ((2, KEY),)),
    ),
    rows=60,
    keys=3,
)
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def test_what_comes_out_is_what_a_map_puts_out() -> None:
    reference = reference_of(PLAIN)
    assert sum(reference.sinks["sink2"].values()) == PLAIN.rows
    assert not reference.ordered, "in no order"
    assert reference_of(ORDERED).ordered, "a key's records in order"


def test_campaigns_draw_them() -> None:
    drawn = [draw_scenario(random.Random(seed)).graph for seed in range(100)]
    assert sum(any(t.kind is Kind.ASKS for t in graph.tasks) for graph in drawn) >= 5


@pytest.mark.parametrize("graph", [PLAIN, TIMED, ORDERED], ids=["plain", "timed", "ordered"])
def test_jobs_hold_under_faults_and_changes_of_parallelism(graph: Graph) -> None:
    met = Coverage()
    for seed in range(8):
        report = World(seed, scenario_of(graph, seed)).run()
        assert not report.violation, f"{seed}: {report.violation}"
        met.merge(report.coverage)
    assert met.counts["rescaled restores"]


def calls_under_way_are_not_in_the_cut(patch: pytest.MonkeyPatch) -> None:
    commit = AsyncMapOperator.commit

    def hasty(self: AsyncMapOperator) -> None:
        commit(self)
        begun = self._pending.keys() - set(self._waiting)
        self._committed = {n: p for n, p in self._committed.items() if n not in begun}

    patch.setattr(AsyncMapOperator, "commit", hasty)


def emitted_results_are_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    commit = AsyncMapOperator.commit

    def lagging(self: AsyncMapOperator) -> None:
        before = self._committed
        commit(self)
        self._committed = before | self._committed

    patch.setattr(AsyncMapOperator, "commit", lagging)


def restored_records_lose_their_keys(patch: pytest.MonkeyPatch) -> None:
    """They are dealt out as a list."""
    made = AsyncMapOperator.__init__

    def keyless(self: AsyncMapOperator, *given: Any, **options: Any) -> None:
        made(self, *given, **options | {"keys": ()})

    patch.setattr(AsyncMapOperator, "__init__", keyless)


def watermarks_pass_calls(patch: pytest.MonkeyPatch) -> None:
    def last(self: AsyncMapOperator) -> int:
        while self._marks:
            self._passed_ns = max(self._passed_ns, self._marks.popleft()[1])
        return self._passed_ns

    patch.setattr(AsyncMapOperator, "watermark_ns", property(last))


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("plant", "graph", "known"),
    [
        (calls_under_way_are_not_in_the_cut, PLAIN, 0),
        (emitted_results_are_asked_for_again, PLAIN, 0),
        (watermarks_pass_calls, TIMED, 0),
        (restored_records_lose_their_keys, ORDERED, 75),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulation_finds_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None],
    graph: Graph,
    known: int,
    monkeypatch: pytest.MonkeyPatch,
    long: bool,
) -> None:
    def violation_of(seed: int) -> str:
        return World(seed, scenario_of(graph, seed)).run().violation

    assert_found(plant, violation_of, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)
