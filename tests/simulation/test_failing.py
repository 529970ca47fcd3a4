"""Functions that fail on some records hold under all faults: each letter comes once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.operators.async_calls import Answer
from headrace.engine.operators.async_map import AsyncMapOperator
from headrace.engine.operators.chain import Chain
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.oracles import check_failed
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.jobs.failing import fails, with_failures
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import reference_of
from headrace.engine.simulation.jobs.source import records_of
from headrace.engine.simulation.jobs.versions import Ending, Rescale
from headrace.engine.simulation.watch import Violation

from .planted import assert_found
from .test_windows import scenario_of

KEY = Hash(("key",), MAX_PARALLELISM)
#: A map that routes, batches that drop, calls that route.
GRAPH = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.ROUTES, 2, ((0, KEY),)),
        TaskSpec(Kind.SKIPS, 3, ((1, KEY),)),
        TaskSpec(Kind.ROUTES, 2, ((2, KEY),)),
        TaskSpec(Kind.SINK, 2, ((3, KEY),)),
        TaskSpec(Kind.DEAD, 2, ((1, KEY),)),
        TaskSpec(Kind.DEAD, 1, ((3, Rebalance()),)),
    ),
    rows=60,
    keys=3,
)
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


def test_each_record_comes_out_or_is_a_letter_or_is_dropped() -> None:
    reference = reference_of(GRAPH)
    came = {sink: {r.id for r in records} for sink, records in reference.sinks.items()}
    ids = set(records_of(0, GRAPH.rows))
    assert came["dead5"] == {id for id in ids if fails(id, 1)}
    assert came["dead6"] == {id for id in ids if fails(id, 3)}
    dropped = {id for id in ids if fails(id, 2)}
    assert came["sink4"] == ids - dropped - came["dead5"] - came["dead6"]
    assert reference.failed == sum(map(len, (dropped, came["dead5"], came["dead6"])))
    assert all(came.values())
    # The letters of the map keep the order of keys; calls end in any order.
    assert reference.ordered == {r.path for r in reference.sinks["dead5"]}


def test_campaigns_draw_them() -> None:
    drawn = [draw_scenario(random.Random(seed)).graph for seed in range(100)]
    for kind in (Kind.ROUTES, Kind.SKIPS):
        assert sum(any(t.kind is kind for t in graph.tasks) for graph in drawn) >= 2


def test_every_version_of_a_job_has_the_sinks_of_letters() -> None:
    plain = Graph((TaskSpec(Kind.SOURCE, 2), TaskSpec(Kind.MAP, 2, ((0, KEY),))), 8, 3)
    rescale = Rescale(Ending.STOP, 1, 0, (3, 4), 2)
    for seed in range(40):
        graph, (wider,) = with_failures(plain, (rescale,), random.Random(seed))
        assert len(wider.parallelism) == len(graph.tasks)
        assert max(wider.parallelism) == 4


def test_jobs_hold_under_faults_and_changes_of_parallelism() -> None:
    met = Coverage()
    for seed in range(8):
        report = World(seed, scenario_of(GRAPH, seed)).run()
        assert not report.violation, f"{seed}: {report.violation}"
        met.merge(report.coverage)
    assert met.counts["rescaled restores"]


def test_failed_records_are_counted_once_each() -> None:
    expected = reference_of(GRAPH).failed
    check_failed(expected, {1: 7, 2: expected})
    with pytest.raises(Violation, match="records failed, and 7 were counted"):
        check_failed(expected, {1: expected, 2: 7})
    world = World(0, replace(scenario_of(GRAPH, 0), profile=no_faults(), rescales=()))
    assert not world.run().violation
    assert world.env.failed[max(world.env.failed)] == expected


def records_leave_the_state_when_their_call_fails(patch: pytest.MonkeyPatch) -> None:
    """Before the piece of work with the letter is committed."""
    answered = AsyncMapOperator._answered

    def hasty(self: AsyncMapOperator, answer: Answer) -> None:
        answered(self, answer)
        if answer.error is not None:
            self._committed.pop(answer.number, None)

    patch.setattr(AsyncMapOperator, "_answered", hasty)


def failed_records_stay_in_the_state(patch: pytest.MonkeyPatch) -> None:
    """So their letters come again after a restore."""
    commit = AsyncMapOperator.commit

    def lagging(self: AsyncMapOperator) -> None:
        before = self._committed
        commit(self)
        self._committed |= {n: p for n, p in before.items() if p.answer is None}

    patch.setattr(AsyncMapOperator, "commit", lagging)


def dropped_records_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def silent(self: Chain) -> tuple[int, str]:
        self._rows_failed = 0
        return 0, ""

    patch.setattr(Chain, "take_failed", silent)


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("plant", "known"),
    [
        (records_leave_the_state_when_their_call_fails, 27),
        (failed_records_stay_in_the_state, 5),
        (dropped_records_are_not_counted, 0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulation_finds_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None],
    known: int,
    monkeypatch: pytest.MonkeyPatch,
    long: bool,
) -> None:
    def violation_of(seed: int) -> str:
        return World(seed, scenario_of(GRAPH, seed)).run().violation

    assert_found(plant, violation_of, known, monkeypatch, seeds_max=SEEDS_MAX, long=long)


def test_letters_on_a_forward_edge_have_a_subtask_for_each_of_the_producers() -> None:
    """Otherwise the plan spreads them, and an oracle that asks for their order is wrong."""
    for seed in range(300):
        tasks = draw_scenario(random.Random(seed)).graph.tasks
        for task in (task for task in tasks if task.kind is Kind.DEAD):
            ((producer, partitioner),) = task.inputs
            if isinstance(partitioner, Forward):
                assert tasks[producer].parallelism == task.parallelism, seed
