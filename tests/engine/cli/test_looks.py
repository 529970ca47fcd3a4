"""`headrace explain`, `status` and `jobs`, of a real job that runs in threads here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine.cli import looks
from headrace.engine.control import folder

Command = Callable[..., Any]
DEADLINE_S = 120.0


def start(name: str, seconds_a_row: float) -> hr.JobHandle:
    """A job whose function sleeps."""

    def score(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(seconds_a_row)
        return row

    rows = hr.read.sequence(None, name="orders", rate=None if seconds_a_row else 100)
    scored = rows.rebalance().map(score, name="score")
    return hr.Job(name, scored.write.blackhole(name="out"), parallelism=1).start("threads")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def slow() -> Iterator[hr.JobHandle]:
    handle = start("slow", 0.005)
    yield handle
    handle.cancel()
    handle.wait()


def until_explained(handle: hr.JobHandle) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while handle.observe().finding.cause != "slow_function":
        assert time.monotonic() < deadline_s, handle.observe().finding
        time.sleep(0.05)


def test_another_process_hears_the_sentence_of_the_job_itself(
    headrace: Command, slow: hr.JobHandle
) -> None:
    until_explained(slow)
    ended = headrace("explain", "slow")
    assert ended.code == 3
    assert "score (1 subtask" in ended.out
    assert "holds back orders" in ended.out
    ended = headrace("explain", "--json")
    (found,) = ended.objects
    assert (found["job"], found["cause"], found["severity"]) == ("slow", "slow_function", "wrong")
    assert found["task"] == slow.observe().finding.task


def test_a_status_is_a_table_or_the_whole_observation(
    headrace: Command, slow: hr.JobHandle
) -> None:
    until_explained(slow)
    ended = headrace("status", "slow")
    assert ended.code == 3
    assert "holds back orders" in ended.out.replace("\n", " ")
    (found,) = headrace("status", "slow", "--json").objects
    assert [task["name"] for task in found["tasks"]][:2] == ["orders", "score"]


def test_a_watch_ends_with_the_job(
    headrace: Command, slow: hr.JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "_EVERY_S", 0.05)
    threading.Timer(0.3, slow.cancel).start()
    ended = headrace("status", "slow", "--watch", "--json")
    assert ended.objects
    assert {found["job"] for found in ended.objects} == {"slow"}


def test_jobs_are_listed_and_chosen_by_name(headrace: Command, slow: hr.JobHandle) -> None:
    other = start("quick", 0.0)
    try:
        found = {row["job"]: row for row in headrace("jobs", "--json").objects}
        assert set(found) == {"quick", "slow"}
        assert headrace("explain", "quick").code == 0
        ended = headrace("explain")
        assert ended.code == 2
        assert "several jobs run; name one of them: quick (process" in ended.sentence
    finally:
        other.cancel()
        other.wait()


def test_no_job_is_no_error_of_a_list(headrace: Command) -> None:
    assert "no job runs here" in headrace("jobs").out
    assert headrace("explain", "orders").code == 2


def test_a_job_that_does_not_answer_is_told_with_code_4(headrace: Command) -> None:
    silent = folder.publish(folder.run_folder(), "silent", "127.0.0.1", 1, bytes(32))
    try:
        ended = headrace("explain", "silent")
        assert ended.code == 4
        (row,) = headrace("jobs", "--json").objects
        assert row["phase"] == "unreachable"
    finally:
        folder.withdraw(silent)
