"""Rescales of a running job under load, with a worker killed in each recovery: exactly once, in
order per key and partition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
from pyspark.sql import SparkSession

from headrace.bench import rescales
from headrace.bench.killer import POINTS, Point
from headrace.engine.spark.session import open_session

pytestmark = pytest.mark.slow

# Workers cannot import the tests: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


CHAIN = [[1, 2], [2, 1], [2, 4], [4, 2], [3, 7], [7, 3], [2, 3, 1, 4]]


def assert_exact(figures: dict[str, Any], *, kills: int = 1) -> None:
    assert figures["exactly_once"], figures
    assert figures["stale_restores"] == 0, figures
    steps = figures["rescales"]
    for step in steps:
        assert step["inflight_records"] > 100 * step["after"], f"no load: {figures}"
    assert figures["restarts"] == kills * len(steps), f"other than one a kill: {figures}"


def assert_progress(figures: dict[str, Any]) -> None:
    """After each kill the job went on from a newer checkpoint than before, taken while it still
    replayed the one before that.
    """
    for step in figures["rescales"]:
        numbers = [attempt["checkpoint"] for attempt in step["attempts"]]
        assert len(set(numbers)) == len(step["kills"]) + 1, figures
        assert all(attempt["replay_records"] for attempt in step["attempts"][1:]), figures


def test_a_rescale_with_a_kill_amid_what_it_replays() -> None:
    assert_exact(rescales.run([2, 3], at=["replaying"], seed=2))


def test_kills_within_the_recovery_of_kills_each_go_on_from_a_newer_checkpoint() -> None:
    figures = rescales.run([2, 3], kills=3, at=["checkpointed"], seed=3)
    assert_exact(figures, kills=3)
    assert_progress(figures)


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("steps", CHAIN, ids=str)
def test_rescales_with_a_kill_in_each_recovery(steps: list[int], at: Point) -> None:
    assert_exact(rescales.run(steps, at=[at], seed=1))


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("state", ["heap", "rocksdb"])
@pytest.mark.parametrize("steps", CHAIN, ids=str)
def test_rescales_with_kills_within_the_recovery_of_kills(steps: list[int], state: Any) -> None:
    assert_exact(rescales.run(steps, kills=4, seed=6, state=state), kills=4)


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("steps", CHAIN, ids=str)
def test_a_job_with_aligned_checkpoints_is_rescaled_by_unaligned_ones(steps: list[int]) -> None:
    assert_exact(rescales.run(steps, seed=5, mode="aligned"))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = open_session("rescales", slots=7, master="local[7,64]")
    yield session
    session.stop()


@pytest.mark.spark
@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("kills", [0, 1, 3])
@pytest.mark.parametrize("steps", CHAIN, ids=str)
def test_more_and_fewer_tasks_of_a_given_spark_session(
    steps: list[int], kills: int, spark: SparkSession
) -> None:
    assert_exact(rescales.run(steps, on="spark", kills=kills, spark=spark), kills=kills)
