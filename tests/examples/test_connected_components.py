"""The components that the loop finds are those of union-find, also when workers are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Literal

import cloudpickle
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.coordinator.rules import Phase

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "connected_components.py"
ROWS = 2_000
Mode = Literal["aligned", "unaligned"]


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("connected_components", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def edges_of(example: ModuleType, rate: float | None = None) -> hr.Stream:
    numbers = hr.read.sequence(ROWS, keys=example.NODES, rate=rate, name="numbers")
    return numbers.flat_map(example.both_ways, example.MESSAGE)


def components_of(example: ModuleType) -> dict[int, int]:
    """Union-find over the same edges: the lowest node of each node's component."""
    result = hr.Job("edges", edges_of(example).write.collect(name="out")).run("threads")
    lowest: dict[int, int] = {}

    def find(node: int) -> int:
        while lowest.setdefault(node, node) != node:
            node = lowest[node]
        return node

    for row in result.collected["out"].to_pylist():
        one, other = sorted((find(row["node"]), find(row["other"])))
        lowest[other] = one
    return {node: find(node) for node in list(lowest)}


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_they_are_those_of_union_find(example: ModuleType, mode: Mode, tmp_path: Path) -> None:
    found = example.edges.iterate(example.spread, name="rounds")
    found = found.key_by("node").aggregate(
        component=hr.min("label"), emit="final", name="components"
    )
    checkpoints = hr.Checkpoints(str(tmp_path / "checkpoints"), interval="0.05s", mode=mode)
    job = hr.Job(
        "components", found.write.collect(name="out"), parallelism=2, checkpoints=checkpoints
    )
    rows = job.run("threads").collected["out"].to_pylist()
    expected = components_of(example)
    assert {row["node"]: row["component"] for row in rows} == expected
    assert len(rows) == len(expected)
    assert len(set(expected.values())) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
@pytest.mark.kills
def test_kills_change_nothing(example: ModuleType, mode: Mode, tmp_path: Path, long: bool) -> None:
    # Workers cannot import the example: it travels by value.
    sys.modules["connected_components"] = example
    cloudpickle.register_pickle_by_value(example)
    kills = 30 if long else 3
    found = edges_of(example, ROWS / (2 * kills)).iterate(example.spread, name="rounds")
    found = found.key_by("node").aggregate(
        component=hr.min("label"), emit="final", name="components"
    )
    job = hr.Job(
        "components",
        found.write.parquet(str(tmp_path / "out"), name="out"),
        parallelism=2,
        checkpoints=hr.Checkpoints(str(tmp_path / "checkpoints"), interval="0.2s", mode=mode),
        restart=hr.Restart(attempts=100),
    )
    handle = job.start("processes")
    rng = random.Random(3)
    try:
        for _ in range(kills):
            completed = handle.status().completed
            while handle.status().completed == completed:
                time.sleep(0.05)
            time.sleep(rng.uniform(0.0, 0.5))
            pids = sorted(handle.status().workers.values())
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(rng.choice(pids), signal.SIGKILL)
        result = handle.wait(300)
    finally:
        if handle.status().phase is Phase.RUNNING:
            handle.cancel()
    assert result.restarts >= 1
    rows = pq.read_table(tmp_path / "out").to_pylist()
    expected = components_of(example)
    assert {row["node"]: row["component"] for row in rows} == expected
    assert len(rows) == len(expected)
