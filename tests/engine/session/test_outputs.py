"""A run that begins anew beside output of its job says so, and does what it is told about that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import headrace as hr
from headrace.engine.session.outputs import committers_of, is_volatile

ROWS = 500


def job(folder: Path, **options: Any) -> hr.Job:
    numbers = hr.read.sequence(ROWS, keys=3, name="numbers")
    sink = numbers.write.parquet(str(folder / "out"), name="out")
    return hr.Job("job", sink, parallelism=2, **options)


def written(folder: Path) -> list[int]:
    table = ds.dataset(folder / "out", format="parquet").to_table()
    return sorted(table["sequence"].to_pylist())


def kept(folder: Path) -> dict[str, Any]:
    return {"checkpoints": hr.Checkpoints(str(folder / "checkpoints"), interval="20ms")}


ONCE = list(range(ROWS))
TWICE = sorted(ONCE * 2)


@pytest.mark.parametrize("durable", [True, False])
def test_a_fresh_run_beside_its_own_output_is_refused_until_it_says_what_to_do(
    tmp_path: Path, durable: bool
) -> None:
    options = kept(tmp_path) if durable else {}
    job(tmp_path, **options).run("threads")
    why = "fresh begins the job anew" if durable else "without checkpoints the job begins anew"
    with pytest.raises(hr.UserError, match=f"out holds output of job 'job', and {why}"):
        job(tmp_path, **options).run("threads", fresh=True)
    assert written(tmp_path) == ONCE
    job(tmp_path, **options).run("threads", fresh="append")
    assert written(tmp_path) == TWICE
    job(tmp_path, **options).run("threads", fresh="replace")
    assert written(tmp_path) == ONCE


def test_a_job_whose_checkpoints_are_gone_does_not_write_everything_once_more(
    tmp_path: Path,
) -> None:
    job(tmp_path, **kept(tmp_path)).run("threads")
    elsewhere: dict[str, Any] = {"checkpoints": hr.Checkpoints(str(tmp_path / "other"))}
    with pytest.raises(hr.UserError, match="other says how far it has come"):
        job(tmp_path, **elsewhere).run("threads")
    assert written(tmp_path) == ONCE


def test_a_fresh_run_that_died_is_followed_by_another_beginning(tmp_path: Path) -> None:
    """Its older checkpoints cover output that was removed."""
    job(tmp_path, **kept(tmp_path)).run("threads")
    never: dict[str, Any] = {
        "checkpoints": hr.Checkpoints(str(tmp_path / "checkpoints"), interval=None)
    }
    slow = hr.read.sequence(None, rate=100, name="numbers")
    sink = slow.write.parquet(str(tmp_path / "out"), name="out")
    handle = hr.Job("job", sink, parallelism=2, **never).start("threads", fresh="replace")
    handle.cancel()
    assert handle.wait(30.0).outcome == "stopped"
    job(tmp_path, **kept(tmp_path)).run("threads")
    assert written(tmp_path) == ONCE


def test_what_is_collected_is_collected_anew_by_the_same_program(tmp_path: Path) -> None:
    """The table of the process before is gone with it; so is that of the run before."""
    numbers = hr.read.sequence(ROWS, keys=3, name="numbers").write.collect(name="out")
    again = hr.Job("job", numbers, parallelism=2, **kept(tmp_path))
    assert is_volatile(again.plan(), committers_of(again.plan()))
    for _ in range(2):
        result = again.run("threads")
        assert sorted(result.collected["out"]["sequence"].to_pylist()) == ONCE
    assert not is_volatile(job(tmp_path).plan(), committers_of(job(tmp_path).plan()))


def test_starting_anew_and_from_a_checkpoint_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(hr.UserError, match="fresh=True and restore='latest' exclude each other"):
        job(tmp_path, **kept(tmp_path)).run("threads", fresh=True, restore="latest")
    with pytest.raises(hr.UserError, match="restore=None names no place to start"):
        job(tmp_path, **kept(tmp_path)).run("threads", restore=None)  # type: ignore[arg-type]
    with pytest.raises(hr.UserError, match="neither True nor False nor 'append' nor 'replace'"):
        job(tmp_path, fresh="rewrite")


def test_a_job_without_checkpoints_stops_at_once_and_says_what_is_lost(tmp_path: Path) -> None:
    slow = hr.read.sequence(None, rate=100, name="numbers")
    sink = slow.write.parquet(str(tmp_path / "out"), name="out")
    handle = hr.Job("job", sink, parallelism=1).start("threads")
    handle.stop()
    assert handle.wait(30.0).outcome == "stopped"
    told = [notice.text for _, notice in handle.status().notices]
    assert any("keeps no checkpoints, so it stops at once" in text for text in told)
    assert not list((tmp_path / "out").glob("part-*"))
