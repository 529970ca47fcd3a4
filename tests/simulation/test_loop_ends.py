"""Jobs with loops end by themselves, under all faults, however their bodies keep records back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.simulation.campaign.world import World
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.worker.event_time import EventTime
from headrace.engine.worker.subtask import Subtask

from .planted import assert_found
from .test_windows import scenario_of

KEY = Hash(("key",), MAX_PARALLELISM)


def looped(body: Kind) -> Graph:
    """A job of one loop."""
    tasks = (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.HEAD, 2, ((0, KEY),), ((3, Rebalance()),)),
        TaskSpec(body, 3, ((1, KEY),)),
        TaskSpec(Kind.AGAIN, 2, ((2, KEY),)),
        TaskSpec(Kind.LEAVE, 1, ((2, Rebalance()),)),
        TaskSpec(Kind.SINK, 2, ((4, KEY),)),
    )
    return Graph(tasks, rows=60, keys=3)


PLAIN, BATCHES, CALLS, TIMERS = map(looped, (Kind.MAP, Kind.BATCHES, Kind.ASKS, Kind.ALARMS))
#: Two loops in a row: the second ends after the first.
TWO = Graph(
    (
        TaskSpec(Kind.SOURCE, 2),
        TaskSpec(Kind.HEAD, 2, ((0, KEY),), ((2, KEY),)),
        TaskSpec(Kind.AGAIN, 2, ((1, Rebalance()),)),
        TaskSpec(Kind.LEAVE, 2, ((1, Rebalance()),)),
        TaskSpec(Kind.HEAD, 3, ((3, KEY),), ((5, Rebalance()),)),
        TaskSpec(Kind.AGAIN, 2, ((4, KEY),)),
        TaskSpec(Kind.LEAVE, 2, ((4, Rebalance()),)),
        TaskSpec(Kind.SINK, 2, ((6, KEY),)),
    ),
    rows=60,
    keys=3,
)
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="headrace"):
        yield


@pytest.mark.parametrize(
    ("graph", "kept"),
    [
        (PLAIN, ()),
        (BATCHES, ()),
        # A back-edge on disk, and an entry at hand that was not admitted; a torn run in a cut.
        (CALLS, (10, 13)),
        # Seed 0: a record larger than the memory of what spills.
        (TIMERS, ()),
        (TWO, (13,)),
    ],
    ids=["plain", "batches", "calls", "timers", "two"],
)
def test_jobs_with_loops_end_under_faults_and_changes_of_parallelism(
    graph: Graph, kept: Sequence[int]
) -> None:
    met = Coverage()
    for seed in [*range(4), *kept]:
        report = World(seed, scenario_of(graph, seed)).run()
        assert not report.violation, f"{seed}: {report.violation}"
        met.merge(report.coverage)
    assert met.counts["ends of loops told"]
    assert met.counts["restarts"]


# --- planted bugs ---------------------------------------------------------------------------------


def running_work_is_overlooked_and_its_records_count_as_consumed(
    patch: pytest.MonkeyPatch,
) -> None:
    whole = Subtask.counts

    def counts(self: Subtask, edges: Any) -> Any:
        kept, self._running = self._running, None
        found = whole(self, edges)
        self._running = kept
        given = self._given if isinstance(self._given, tuple) else ()
        taken = sum(one.buffer.rows for one in given if one.channel.edge in edges)
        return found and (found[0], found[1] + taken)

    patch.setattr(Subtask, "counts", counts)


def timers_and_calls_are_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EventTime, "is_at_rest", True)


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("plant", "graph", "known"),
    [
        (running_work_is_overlooked_and_its_records_count_as_consumed, PLAIN, 0),
        (timers_and_calls_are_overlooked, TIMERS, 0),
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
