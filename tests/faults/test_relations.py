"""Windows, joins and connect through kills and rescales of real workers: what SQLite computes from the same input, exactly."""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest

from headrace.bench import relations
from headrace.engine.spark.session import open_session

pytestmark = pytest.mark.slow


def assert_exact(figures: dict[str, Any], kills: int) -> None:
    assert figures["exactly_once"], figures
    assert figures["restarts"] == kills, f"other than one a kill: {figures}"
    for what, inflight in figures["blows"]:
        assert what == "kill" or inflight > 200, f"no load: {figures}"


def test_windows_joins_and_connect_through_a_rescale_with_a_kill() -> None:
    assert_exact(relations.run([1, 2], kills=0, seed=1), kills=1)


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_through_kills_and_rescales_with_either_backend(
    backend: Literal["heap", "rocksdb"], seed: int
) -> None:
    assert_exact(relations.run([2, 3, 1], backend=backend, seed=seed), kills=5)


@pytest.mark.usefixtures("only_long")
def test_the_same_with_aligned_checkpoints() -> None:
    assert_exact(relations.run([2, 4], mode="aligned"), kills=3)


@pytest.mark.spark
@pytest.mark.usefixtures("only_long")
def test_the_same_on_spark() -> None:
    spark = open_session("relations", slots=3, master=f"local[{max(3, os.cpu_count() or 1)},32]")
    try:
        assert_exact(relations.run([2, 3], on="spark", spark=spark), kills=3)
    finally:
        spark.stop()
