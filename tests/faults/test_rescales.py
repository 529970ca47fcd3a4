"""Rescales of a running job under load, with a worker killed in each recovery: exactly once, in order per key and partition."""

from __future__ import annotations

import os
import sys

import pytest
from pyspark import cloudpickle

from headrace.bench import rescales
from headrace.engine.spark.session import open_session

pytestmark = pytest.mark.slow

# Workers cannot import the tests: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # pyspark's copy has no types


def assert_exact(figures: dict[str, object]) -> None:
    assert figures["exactly_once"], figures
    steps = figures["rescales"]
    assert isinstance(steps, list)
    assert all(step["inflight_records"] > 0 for step in steps), f"no load: {figures}"


def test_a_rescale_with_a_kill_in_its_recovery() -> None:
    figures = rescales.run([2, 3], seed=2)
    assert_exact(figures)
    assert figures["restarts"], "the kill disturbed nothing"


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "steps", [[1, 2], [2, 1], [2, 4], [4, 2], [3, 7], [7, 3], [2, 3, 1, 4]], ids=str
)
def test_rescales_with_a_kill_in_each_recovery(steps: list[int], seed: int) -> None:
    assert_exact(rescales.run(steps, seed=seed))


@pytest.mark.usefixtures("only_long")
def test_a_job_with_aligned_checkpoints_is_rescaled_by_an_unaligned_one() -> None:
    assert_exact(rescales.run([2, 4, 1], seed=5, mode="aligned"))


@pytest.mark.spark
@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("steps", [[1, 3, 2]], ids=str)
def test_more_and_fewer_tasks_of_a_given_spark_session(steps: list[int]) -> None:
    spark = open_session("rescales", slots=4, master=f"local[{max(4, os.cpu_count() or 1)},32]")
    try:
        assert_exact(rescales.run(steps, on="spark", kill=False, spark=spark))
    finally:
        spark.stop()
