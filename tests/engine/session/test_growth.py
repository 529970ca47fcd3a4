"""The same job again after its end: nothing to do, or what its sources have gained since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.engine.coordinator.coordinator_events import NoticeKind


def job(folder: Path, **options: Any) -> hr.Job:
    lines = hr.read.text(str(folder / "in" / "*.txt"), name="lines")
    sink = lines.rebalance().write.json(str(folder / "out"), name="out")
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval="20ms")
    stated: dict[str, Any] = {"parallelism": 2, "checkpoints": checkpoints}
    return hr.Job("job", sink, **(stated | options))


def written(folder: Path) -> list[str]:
    parts = [path.read_text() for path in (folder / "out").glob("part-*")]
    return sorted(json.loads(line)["line"] for part in parts for line in part.splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\nb\n")
    job(tmp_path).run("threads")
    assert written(tmp_path) == ["a", "b"]
    return tmp_path


def test_a_job_that_had_finished_says_so_and_starts_no_worker(folder: Path) -> None:
    handle = job(folder).start("processes")
    result = handle.wait(30.0)
    assert (result.outcome, result.checkpoints) == ("finished", 0)
    told = [(notice.kind, notice.text) for _, notice in handle.status().notices]
    said = "job job had finished, and its sources have nothing new: there is nothing to do"
    assert told == [(NoticeKind.FINISHED, said)]
    assert not handle.status().workers
    assert written(folder) == ["a", "b"]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_new_files_and_appended_lines_are_read_from_the_final_checkpoint(
    folder: Path, parallelism: int
) -> None:
    with (folder / "in" / "1.txt").open("a") as grown:
        grown.write("c\n")
    (folder / "in" / "2.txt").write_text("d\n")
    for _ in range(2):
        assert job(folder, parallelism=parallelism).run("threads").outcome == "finished"
        assert written(folder) == ["a", "b", "c", "d"]
    (folder / "in" / "3.txt").write_text("e\n")
    job(folder).run("threads")
    assert written(folder) == ["a", "b", "c", "d", "e"]


def test_state_goes_on_with_the_new_records(tmp_path: Path) -> None:
    def counting(rows: int) -> hr.Job:
        numbers = hr.read.sequence(rows, keys=2, name="numbers", parallelism=1)
        counts = numbers.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
        sink = counts.write.json(str(tmp_path / "out"), name="out")
        return hr.Job("job", sink, parallelism=2, checkpoints=str(tmp_path / "checkpoints"))

    def totals() -> list[int]:
        parts = [path.read_text() for path in (tmp_path / "out").glob("part-*")]
        return sorted(json.loads(line)["n"] for part in parts for line in part.splitlines())

    counting(10).run("threads")
    assert totals() == [5, 5]
    counting(10).run("threads")
    assert totals() == [5, 5]
    counting(16).run("threads")
    assert totals() == [5, 5, 8, 8]


def test_windows_of_new_records_are_told(tmp_path: Path) -> None:
    """The end of input closed all windows; event time begins anew with what comes later."""

    def windowed(rows: int) -> hr.Job:
        numbers = hr.read.sequence(rows, keys=1, name="numbers", parallelism=1)
        cast = pc.field("timestamp").cast(pa.timestamp("ns"))
        timed = numbers.select(key=pc.field("key"), at=cast).with_watermark("at", "1us", name="at")
        counts = timed.key_by("key").window(hr.tumbling("1h")).aggregate(n=hr.count(), name="n")
        sink = counts.write.json(str(tmp_path / "out"), name="out")
        return hr.Job("job", sink, parallelism=1, checkpoints=str(tmp_path / "checkpoints"))

    def totals() -> list[int]:
        parts = [path.read_text() for path in (tmp_path / "out").glob("part-*")]
        return sorted(json.loads(line)["n"] for part in parts for line in part.splitlines())

    windowed(10).run("threads")
    assert totals() == [10]
    windowed(16).run("threads")
    assert totals() == [6, 10]
