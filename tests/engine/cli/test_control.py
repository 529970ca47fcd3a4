"""`headrace rescale` and `stop`, asked of a real job that runs in threads here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

Command = Callable[..., Any]


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hr.JobHandle]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    numbers = hr.read.sequence(None, keys=5, name="numbers", rate=1000)
    totals = numbers.key_by("key").aggregate(n=hr.count(), name="totals")
    job = hr.Job(
        "numbered",
        totals.write.blackhole(name="out"),
        parallelism=1,
        checkpoints=str(tmp_path / "checkpoints"),
    )
    handle = job.start("threads")
    yield handle
    handle.cancel()
    handle.wait()


def test_a_job_is_rescaled_and_stopped_by_its_name(headrace: Command, handle: hr.JobHandle) -> None:
    ended = headrace("rescale", "numbered", "2", "--json")
    assert ended.code == 0, ended.err
    (done,) = ended.objects
    assert (done["job"], done["parallelism"]) == ("numbered", 2)
    assert done["duration_ms"] >= done["stop_ms"] > 0
    assert done["duration_ms"] >= done["standstill_ms"] > 0
    ended = headrace("rescale", "numbered", "1")
    assert "job numbered runs at parallelism 1, from chk-" in ended.out
    ended = headrace("stop", "numbered", "--json")
    assert ended.objects[0]["last_checkpoint"] == handle.wait().last_checkpoint


def test_mistakes_leave_the_job_as_it_is(headrace: Command, handle: hr.JobHandle) -> None:
    ended = headrace("rescale", "numbered", "4000")
    assert ended.code == 2
    assert "max" in ended.sentence
    ended = headrace("rescale", "another", "2")
    assert ended.code == 2
    assert "no job 'another' runs here; these run: numbered (process" in ended.sentence
    assert handle.checkpoint() > 0


def test_a_drained_job_works_on_all_that_it_has_read(
    headrace: Command, handle: hr.JobHandle
) -> None:
    ended = headrace("stop", "numbered", "--drain", "--now")
    assert ended.code == 2
    assert "--now and --drain exclude each other" in ended.sentence
    ended = headrace("stop", "numbered", "--drain", "--json")
    result = handle.wait()
    assert result.outcome == "finished"
    assert ended.objects == [
        {
            "job": "numbered",
            "stopped": True,
            "drained": True,
            "last_checkpoint": result.last_checkpoint,
            "savepoint": None,
        }
    ]


def test_a_job_ends_with_a_savepoint_where_it_was_asked_for(
    headrace: Command, handle: hr.JobHandle, tmp_path: Path
) -> None:
    ended = headrace("stop", "numbered", "--now", "--savepoint", "saved")
    assert ended.code == 2
    assert "--now and --savepoint exclude each other" in ended.sentence
    ended = headrace("stop", "numbered", "--mode", "unaligned")
    assert ended.code == 2
    assert "--mode is of the savepoint" in ended.sentence
    ended = headrace("stop", "numbered", "--savepoint", "saved", "--mode", "unaligned", "--json")
    assert ended.code == 0, ended.err
    assert handle.wait().outcome == "stopped"
    path = Path(ended.objects[0]["savepoint"])
    assert path.parent == tmp_path / "saved" / "numbered"
    assert (path / "metadata").exists()


def test_stopping_at_once(headrace: Command, handle: hr.JobHandle) -> None:
    ended = headrace("stop", "numbered", "--now")
    assert (ended.code, ended.out) == (0, "job numbered has stopped\n")


def test_a_savepoint_goes_where_it_was_asked_for(
    headrace: Command, handle: hr.JobHandle, tmp_path: Path
) -> None:
    ended = headrace("savepoint", "numbered", "saved", "--mode", "unaligned", "--json")
    assert ended.code == 0, ended.err
    (done,) = ended.objects
    assert done["savepoint"].startswith(f"{tmp_path}/saved/numbered/sav-")
    assert (Path(done["savepoint"]) / "metadata").exists()
    assert headrace("savepoint", "numbered", "--mode", "sideways").code == 2
