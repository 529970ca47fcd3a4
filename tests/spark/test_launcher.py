"""Workers as tasks of a real Spark job: each alone is started again, and none survives the stop."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.spark.launcher import SparkLauncher, address_towards, failure_reason

if TYPE_CHECKING:
    from .conftest import Roster

PROGRAM = WorkerProgram("job", ("127.0.0.1", 9), b"secret", b"plan", 2)
WAIT_S = 240.0

pytestmark = pytest.mark.spark


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "condition not met in time"
        time.sleep(0.02)


def unexpected(reason: str) -> None:
    raise AssertionError(reason)


def test_only_the_killed_worker_starts_again_with_a_higher_number(
    spark: SparkSession, roster: Roster
) -> None:
    launcher = SparkLauncher(spark, workers=2, entry=roster.entry())
    launcher.start(PROGRAM, unexpected)
    ((number, other),) = roster.wait_for(0, starts=1).items()
    ((first, killed),) = roster.wait_for(1, starts=1).items()
    os.kill(killed, signal.SIGKILL)
    restarted = roster.wait_for(1, starts=2)
    assert len(restarted) == 2
    assert max(restarted) > first
    assert roster.pids(0) == {number: other}
    os.kill(other, 0)
    roster.stop()
    launcher.stop(WAIT_S)


def test_sparks_page_says_which_job_and_what_its_stage_does(
    spark: SparkSession, roster: Roster
) -> None:
    launcher = SparkLauncher(spark, workers=2, entry=roster.entry())
    launcher.start(PROGRAM, unexpected)
    roster.wait_for(1, starts=1)
    store = spark.sparkContext._jsc.sc().statusStore()
    (stage,) = spark.sparkContext.statusTracker().getActiveStageIds()
    told = store.lastStageAttempt(stage).description().get()
    roster.stop()
    launcher.stop(WAIT_S)
    assert told == "headrace: job (2 workers, until the job ends)"


def test_workers_get_the_program_and_an_address_and_end_without_complaint(
    spark: SparkSession, roster: Roster
) -> None:
    launcher = SparkLauncher(spark, workers=2, entry=roster.entry())
    assert launcher.workers == 2
    assert launcher.coordinator_host == "127.0.0.1"
    launcher.start(PROGRAM, unexpected)
    for worker in range(2):
        roster.wait_for(worker, starts=1)
    roster.stop()
    launcher.stop(WAIT_S)
    for worker in range(2):
        (report,) = roster.folder.glob(f"{worker}.*")
        assert report.read_text().split()[1:] == ["127.0.0.1", "secret"]


def test_a_successor_works_beside_the_one_before_where_there_is_room(
    spark: SparkSession, roster: Roster
) -> None:
    first = SparkLauncher(spark, workers=1, entry=roster.entry())
    first.start(PROGRAM, unexpected)
    roster.wait_for(0, starts=1)
    assert (first.has_room_beside(1), first.has_room_beside(2)) == (True, False)
    second = first.successor(1)
    assert second is not None
    second.start(PROGRAM, unexpected)
    assert len(roster.wait_for(0, starts=2)) == 2
    # The second one's worker takes the last slot, whoever asks.
    wait_for(lambda: not first.has_room_beside(1))
    with pytest.raises(UserError, match="the job needs 3 slots, Spark has 2"):
        first.successor(3)
    roster.stop()
    first.stop(WAIT_S)
    second.stop(WAIT_S)


def test_workers_that_ignore_the_coordinator_are_cancelled(
    spark: SparkSession, roster: Roster
) -> None:
    launcher = SparkLauncher(spark, workers=2, entry=roster.entry())
    launcher.start(PROGRAM, unexpected)
    pids = [*roster.wait_for(0, starts=1).values(), *roster.wait_for(1, starts=1).values()]
    launcher.stop(0.0)
    launcher.stop(0.0)
    roster.wait_until_dead(pids)


def test_numbers_rise_from_one_submission_to_the_next(spark: SparkSession, roster: Roster) -> None:
    roster.stop()
    for starts in (1, 2):
        launcher = SparkLauncher(spark, workers=1, entry=roster.entry())
        launcher.start(PROGRAM, unexpected)
        assert len(roster.wait_for(0, starts=starts)) == starts
        launcher.stop(WAIT_S)


def test_too_few_slots_are_an_error_at_submission(spark: SparkSession, roster: Roster) -> None:
    launcher = SparkLauncher(spark, workers=3, entry=roster.entry())
    with pytest.raises(UserError, match=r"needs 3 slots, Spark has 2 \(master local\[2,4\]\)"):
        launcher.start(PROGRAM, unexpected)
    launcher.stop(0.0)


def test_workers_that_never_come_up_fail_the_job_with_their_error(spark: SparkSession) -> None:
    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        raise ModuleNotFoundError("No module named 'numpie'")

    reasons: queue.Queue[str] = queue.Queue()
    launcher = SparkLauncher(spark, workers=1, entry=entry)
    launcher.start(PROGRAM, reasons.put)
    reason = reasons.get(timeout=WAIT_S)
    assert reason == "Spark gave up the workers: ModuleNotFoundError: No module named 'numpie'"
    launcher.stop(WAIT_S)


def test_an_address_towards_loopback_is_loopback() -> None:
    assert address_towards(("127.0.0.1", 9)) == "127.0.0.1"


def test_a_worker_that_kept_dying_is_told_in_spark_s_words() -> None:
    text = (
        "An error occurred while calling z:collectAndServe.\n: org.apache.spark.SparkException: "
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 2 times, most recent"
        " failure: "
        "Lost task 0.1 in stage 1.0 (TID 3) (127.0.0.1 executor driver): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): \n\n\tat a.b"
    )
    assert failure_reason(text) == (
        "Spark gave up the workers: Python worker exited unexpectedly (crashed)"
    )


def test_any_other_failure_is_told_by_its_first_line() -> None:
    assert failure_reason("Context is gone\n\tat a.b(C.java)") == (
        "Spark gave up the workers: Context is gone"
    )
