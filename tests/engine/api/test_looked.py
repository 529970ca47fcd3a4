"""Looks at a stream: its first records, and samples of a running job."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr

DEADLINE_S = 60.0


def numbers(rows: int | None = 100) -> hr.Stream:
    return hr.read.sequence(rows, name="numbers").select("sequence")


def test_take_returns_the_first_records_in_order() -> None:
    assert numbers().take(5)["sequence"].to_pylist() == [0, 1, 2, 3, 4]


def test_take_returns_all_records_when_there_are_too_few() -> None:
    doubled = numbers(3).select(double=pc.field("sequence") * 2)
    assert doubled.take(10).to_pylist() == [{"double": 0}, {"double": 2}, {"double": 4}]


def test_take_of_nothing_has_the_columns() -> None:
    assert numbers(0).take(5).schema.names == ["sequence"]
    assert numbers().take(0).num_rows == 0


def test_take_ends_a_stream_that_never_ends_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    assert numbers(None).take(1000).num_rows == 1000
    # The thread that looks at the job hears of its end by itself.
    deadline = time.monotonic() + DEADLINE_S
    while len(set(threading.enumerate()) - before) > 1:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


def test_take_fails_at_the_first_failure() -> None:
    def fail(row: dict[str, int]) -> dict[str, int]:
        raise ValueError("no")

    with pytest.raises(hr.JobFailed, match="ValueError: no"):
        numbers().map(fail).take(1)


def test_take_minds_no_settings_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_CHECKPOINTS_DIRECTORY", str(tmp_path / "checkpoints"))
    numbers().take(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [-1, "5", True])
def test_take_and_show_refuse_what_is_no_number(rows: object) -> None:
    for look in (numbers().take, numbers().show):
        with pytest.raises(hr.UserError, match="takes a number of records"):
            look(rows)  # type: ignore[arg-type]  # that is the mistake


def test_show_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    batch = pa.record_batch({"name": ["Ann", None], "n": [1, 2]})
    hr.read.batches([batch], name="rows").show(1)
    out = capsys.readouterr().out
    assert "name" in out
    assert "Ann" in out
    assert "2" not in out


def test_inspect_prints_samples_and_passes_every_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = numbers().inspect(label="looking", every="1h")
    job = hr.Job("inspected", stream.write.collect(name="out"))
    assert job.run("threads", parallelism=2).collected["out"].num_rows == 100
    lines = [line for line in capsys.readouterr().err.splitlines() if "looking" in line]
    assert len(lines) == 2, "one of each subtask"
    assert lines[0].startswith("[inspect")
    assert "record 0: {'sequence': " in lines[0]
