"""Live rescales in a simulated world: workers come first, fetch state, and the next version
begins; or it is given up.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.campaign.faults import no_faults
from headrace.engine.simulation.campaign.scenario import Scenario, draw_scenario
from headrace.engine.simulation.campaign.world import Report, World
from headrace.engine.simulation.jobs.versions import Ending, Rescale
from headrace.engine.storage.ahead import FilesAhead

SEEDS = range(9)


def scenario_of(seed: int) -> Scenario:
    """A job with databases, without faults, that is rescaled once when its first checkpoint is
    complete.
    """
    rng = random.Random(f"live rescale {seed}")
    while not (drawn := draw_scenario(rng, mode=CheckpointMode.UNALIGNED)).rescales:
        pass
    wanted = Rescale(Ending.RESCALE, 1, 0, drawn.rescales[0].parallelism, 2)
    wanted = replace(wanted, workers=min(2, max(wanted.parallelism)))
    settings = replace(
        drawn.settings,
        databases=frozenset(range(len(drawn.graph.tasks))),
        checkpoint_interval_ns=10_000_000,
        savepoints=0,
        claim_after=None,
    )
    return replace(drawn, settings=settings, profile=no_faults(), rescales=(wanted,), drain_ns=None)


def reports() -> list[Report]:
    return [World(seed, scenario_of(seed)).run() for seed in SEEDS]


def met(found: list[Report], what: str) -> int:
    return sum(report.coverage.get(what, 0) for report in found)


def test_the_next_version_goes_on_with_workers_and_files_that_were_there_before() -> None:
    found = reports()
    assert {report.violation for report in found} == {""}
    assert met(found, "rescales that took over") > 3
    assert met(found, "files restored that were fetched ahead") > 3


def test_a_rescale_whose_workers_do_not_come_is_given_up_and_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = World._launch

    def only_first(self: World, coordinator: object, worker: int, number: int) -> None:
        if coordinator is self.coordinator:
            launch(self, coordinator, worker, number)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(World, "_launch", only_first)
    found = reports()
    assert {report.violation for report in found} == {""}
    assert met(found, "rescales given up") > 3
    assert met(found, "rescales that took over") == 0


def test_a_file_that_is_taken_for_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = FilesAhead.take
    mixed: set[int] = set()

    def next_one(self: FilesAhead, file: object, folder: str) -> bool:
        if id(self) not in mixed:
            mixed.add(id(self))
            fetched = list(self._fetched.values())
            self._fetched = dict(zip(self._fetched, fetched[1:] + fetched[:1], strict=True))
        return take(self, file, folder)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(FilesAhead, "take", next_one)
    assert any(World(seed, scenario_of(seed)).run().violation for seed in (36, *range(9, 40)))
