"""Rescales of a running job under load, with a worker killed in each recovery: exactly once, in order per key and partition."""

from __future__ import annotations

import os
import sys
from typing import get_args

import pytest
from pyspark import cloudpickle

from headrace.bench import rescales
from headrace.bench.audit import Moment
from headrace.engine.spark.session import open_session

pytestmark = pytest.mark.slow

# Workers cannot import the tests: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # pyspark's copy has no types


CHAIN = [[1, 2], [2, 1], [2, 4], [4, 2], [3, 7], [7, 3], [2, 3, 1, 4]]


def assert_exact(figures: dict[str, object], *, kill: bool = True) -> None:
    assert figures["exactly_once"], figures
    steps = figures["rescales"]
    assert isinstance(steps, list)
    for step in steps:
        assert step["inflight_records"] > 100 * step["after"], f"no load: {figures}"
    assert figures["restarts"] == (len(steps) if kill else 0), f"other than one a kill: {figures}"


def test_a_rescale_with_a_kill_amid_what_it_replays() -> None:
    assert_exact(rescales.run([2, 3], at="replaying", seed=2))


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("at", get_args(Moment))
@pytest.mark.parametrize("steps", CHAIN, ids=str)
def test_rescales_with_a_kill_in_each_recovery(steps: list[int], at: Moment) -> None:
    assert_exact(rescales.run(steps, at=at, seed=1))


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("steps", CHAIN, ids=str)
def test_a_job_with_aligned_checkpoints_is_rescaled_by_unaligned_ones(steps: list[int]) -> None:
    assert_exact(rescales.run(steps, seed=5, mode="aligned"))


@pytest.mark.spark
@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("kill", [False, True])
def test_more_and_fewer_tasks_of_a_given_spark_session(kill: bool) -> None:
    spark = open_session("rescales", slots=4, master=f"local[{max(4, os.cpu_count() or 1)},32]")
    try:
        assert_exact(rescales.run([1, 3, 2], on="spark", kill=kill, spark=spark), kill=kill)
    finally:
        spark.stop()
