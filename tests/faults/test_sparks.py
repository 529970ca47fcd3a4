"""Workers that are Spark's (fault F23): whatever ends a job leaves no Python worker and no
half-visible output.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.bench.audit import AuditedJob
from headrace.engine.coordinator.rules import Phase
from headrace.engine.spark.session import open_session
from headrace.engine.spark.standalone import descendants

from .conftest import (
    WAIT_S,
    StartDriver,
    assert_no_repeats,
    assert_prefix,
    wait_for,
    wait_until_dead,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RATE_PER_S = 1000.0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = open_session("faults", slots=2, master="local[2,8]")
    yield session
    session.stop()


def audited_in(folder: Path) -> AuditedJob:
    return AuditedJob(folder, int(RATE_PER_S * 30), RATE_PER_S, interval="0.2s")


def started(audited: AuditedJob, spark: SparkSession) -> hr.JobHandle:
    """Start the job on a given session, wait until it has completed a checkpoint."""
    handle = audited.build().start(spark=spark)
    wait_for(lambda: handle.status().completed >= 1, "a checkpoint")
    return handle


def test_two_jobs_in_a_row_on_a_given_session_which_stays(
    tmp_path: Path, spark: SparkSession
) -> None:
    cancelled = audited_in(tmp_path / "cancelled")
    handle = started(cancelled, spark)
    workers = sorted(handle.status().workers.values())
    handle.cancel()
    handle.wait(WAIT_S)
    # Spark is told to end the tasks; their processes may take a moment, and must not show.
    finished = audited_in(tmp_path / "finished")
    finished.hurry()
    finished.build().run(spark=spark)
    wait_until_dead(workers)
    assert_prefix(cancelled)
    assert not list(cancelled.output.rglob("*.tmp"))
    assert finished.verdict().exact, finished.verdict()
    assert spark.range(7).count() == 7


def test_a_frozen_worker_is_ended_through_spark_and_its_successor_goes_on(
    tmp_path: Path, spark: SparkSession
) -> None:
    audited = audited_in(tmp_path)
    quick = hr.Network(heartbeat="0.1s", heartbeat_timeout="3s")
    handle = audited.build(network=quick).start(spark=spark)
    wait_for(lambda: handle.status().completed >= 1, "a checkpoint")
    frozen = handle.status().workers[1]
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_for(lambda: handle.status().workers[1] != frozen, "its successor")
        wait_until_dead([frozen])
    finally:
        if Path(f"/proc/{frozen}").exists():
            os.kill(frozen, signal.SIGCONT)
    done = handle.status().completed
    wait_for(lambda: handle.status().completed > done, "another checkpoint")
    audited.hurry()
    handle.wait(WAIT_S)
    assert audited.verdict().exact, audited.verdict()


@pytest.mark.usefixtures("only_long")
def test_a_worker_frozen_while_its_job_is_cancelled_shows_nothing_when_it_wakes(
    tmp_path: Path, spark: SparkSession
) -> None:
    audited = audited_in(tmp_path)
    handle = started(audited, spark)
    frozen = handle.status().workers[0]
    os.kill(frozen, signal.SIGSTOP)
    try:
        handle.cancel()
        handle.wait(WAIT_S)
        visible = audited.visible().num_rows
    finally:
        # Spark may have killed it by now: that is as good.
        if Path(f"/proc/{frozen}").exists():
            os.kill(frozen, signal.SIGCONT)
    wait_until_dead([frozen])
    assert audited.visible().num_rows == visible
    assert_prefix(audited)
    audited.hurry()
    audited.build().run(spark=spark, restore="latest")
    assert audited.verdict().exact, audited.verdict()


def test_a_killed_worker_of_an_embedded_spark_is_replaced_alone(
    tmp_path: Path, spark: SparkSession
) -> None:
    audited = audited_in(tmp_path)
    handle = started(audited, spark)
    before = handle.status().workers
    os.kill(before[1], signal.SIGKILL)
    wait_for(lambda: handle.status().workers[1] != before[1], "the replacement")
    wait_for(lambda: handle.status().phase is Phase.RUNNING, "the next attempt")
    assert handle.status().workers[0] == before[0]
    audited.hurry()
    handle.wait(WAIT_S)
    assert audited.verdict().exact, audited.verdict()


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_a_driver_with_an_embedded_spark_leaves_nothing_behind(
    tmp_path: Path, start_driver: StartDriver, end: signal.Signals
) -> None:
    audited = audited_in(tmp_path)
    driver = start_driver(audited, "spark")
    workers = driver.until("running")
    driver.until("checkpoint")
    all_of_it = descendants(driver.process.pid)
    assert set(workers) <= set(all_of_it)
    driver.kill(end)
    if end is signal.SIGINT:
        driver.until("interrupted")
        assert driver.ended()[0] == 130
        assert not list(audited.output.rglob("*.tmp"))
    wait_until_dead(all_of_it)
    if end is signal.SIGINT:
        assert_prefix(audited)
    else:
        assert_no_repeats(audited)
    audited.hurry()
    audited.build().run("threads", restore="latest")
    assert audited.verdict().exact, audited.verdict()
