"""Runs with an in-flight log: checkpoints name its ranges, and no piece outlives what it was
written for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World
from headrace.recovery.layout import parse_checkpoint_path

SEEDS = 40
FAULTY_SEEDS = 50


def logged(*, faults: bool) -> Iterator[World]:
    """The runs of the first seeds that keep a log, done."""
    for seed in range(FAULTY_SEEDS if faults else SEEDS):
        scenario = draw_scenario(random.Random(f"scenario {seed}"), faults=faults)
        if scenario.settings.limits.logs:
            world = World(seed, scenario)
            assert world.run().violation == "", seed
            yield world


def test_pieces_of_the_log_lie_with_retained_checkpoints_only() -> None:
    """Without faults nobody dies with a piece under way, except where a rescale replaces the
    simulated workers at once.
    """
    written = 0
    for world in logged(faults=False):
        if world.coordinator is None or world.coordinator.generation > 1:
            continue
        paths = world.env.storage.list("")
        complete = {p.rpartition("/")[0] for p in paths if p.endswith("/metadata")}
        pieces = [path for path in paths if "-log-" in path]
        written += world.coverage.counts["log pieces written"]
        for path in pieces:
            assert parse_checkpoint_path(path) is not None
        stray = [p for p in pieces if p.rpartition("/")[0] not in complete]
        assert all(_is_named(world, path) for path in stray), stray
    assert written


def test_ranges_of_the_log_are_named_though_everything_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("CRITICAL", logger="headrace"):
        named = sum(
            world.coverage.counts["records named in a log"] for world in logged(faults=True)
        )
    assert named


def _is_named(world: World, path: str) -> bool:
    """Some complete checkpoint refers to it; its own was deleted around it."""
    name = path.partition("/")[2].encode()
    storage = world.env.storage
    return any(name in storage.get(p) for p in storage.list("") if p.endswith("/metadata"))
