"""Jobs with loops end by themselves, under all faults, however their bodies keep records back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.engine.contract import messages as m
from headrace.engine.coordinator import loop_end
from headrace.engine.coordinator.coordinator import Coordinator
from headrace.engine.coordinator.loop_end import LoopEnds
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
    "graph",
    [PLAIN, BATCHES, CALLS, TIMERS, TWO],
    ids=["plain", "batches", "calls", "timers", "two"],
)
def test_jobs_with_loops_end_under_faults_and_changes_of_parallelism(graph: Graph) -> None:
    met = Coverage()
    for seed in range(8):
        report = World(seed, scenario_of(graph, seed)).run()
        assert not report.violation, f"{seed}: {report.violation}"
        met.merge(report.coverage)
    assert met.counts["ends of loops told"]
    assert met.counts["restarts"]


# --- planted bugs ---------------------------------------------------------------------------------


def one_wave_is_enough(patch: pytest.MonkeyPatch) -> None:
    whole = loop_end._Loop.has_ended

    def has_ended(self: loop_end._Loop, now_ns: int) -> bool:
        whole(self, now_ns)
        return self.rest is not None

    patch.setattr(loop_end._Loop, "has_ended", has_ended)


def _overlooks(patch: pytest.MonkeyPatch, part: str, nothing: Any) -> None:
    """Have `counts` look at a subtask without `part`."""
    whole = Subtask.counts

    def counts(self: Subtask, edges: Any) -> Any:
        kept = getattr(self, part)
        setattr(self, part, nothing)
        try:
            return whole(self, edges)
        finally:
            setattr(self, part, kept)

    patch.setattr(Subtask, "counts", counts)


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


def replay_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    class NothingLeft:
        pending_ports: frozenset[int] = frozenset()

    _overlooks(patch, "_replay", NothingLeft())


def entries_count_as_ended(patch: pytest.MonkeyPatch) -> None:
    def counts(self: Subtask, edges: Any) -> Any:
        if self._running is not None or self._wave or self._replay.pending_ports:
            return None
        channels = self._gate.channels.items()
        consumed = sum(c.committed for id, c in channels if id.edge in edges)
        return sum(s.tail for id, s in self._subpartitions.items() if id.edge in edges), consumed

    patch.setattr(Subtask, "counts", counts)


def answers_of_older_epochs_and_waves_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Every answer counts for each loop that waits for one; an older attempt's, too."""
    whole, message = LoopEnds.probed, Coordinator._message

    def probed(self: LoopEnds, worker: int, answer: m.LoopProbed, now_ns: int) -> Any:
        loop = next((one for one in self._near if one.wave is not None), None)
        if loop is None or loop.wave is None:
            return []
        return whole(
            self,
            worker,
            m.LoopProbed(answer.epoch, loop.wave, answer.at_rest, answer.sent, answer.consumed),
            now_ns,
        )

    def believed(self: Coordinator, connection: int, said: m.ToCoordinator) -> Any:
        if isinstance(said, m.LoopProbed):
            said = m.LoopProbed(self.epoch, said.wave, said.at_rest, said.sent, said.consumed)
        return message(self, connection, said)

    patch.setattr(LoopEnds, "probed", probed)
    patch.setattr(Coordinator, "_message", believed)


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("plant", "graph", "known"),
    [
        (one_wave_is_enough, PLAIN, 0),
        (running_work_is_overlooked_and_its_records_count_as_consumed, PLAIN, 0),
        (timers_and_calls_are_overlooked, CALLS, 0),
        (timers_and_calls_are_overlooked, TIMERS, 0),
        (replay_is_overlooked, PLAIN, 0),
        (entries_count_as_ended, PLAIN, 0),
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
