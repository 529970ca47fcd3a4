"""Whole jobs with slow functions, in threads: full batches, pandas, shared instances, and the pace
that a function with a fixed cost gets.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # ships no types
import pyarrow as pa
import pytest

import headrace as hr

ROWS = 5_000
SIZES = pa.schema([("first", pa.int64()), ("rows", pa.int64())])


def sizes(batch: pa.RecordBatch) -> dict[str, list[int]]:
    return {"first": [batch["sequence"][0].as_py()], "rows": [batch.num_rows]}


def test_calls_have_full_batches_and_the_rest_at_the_end() -> None:
    rows = hr.read.sequence(ROWS, name="in")
    out = rows.map_batches(sizes, SIZES, batch_size=512, linger="10s", name="sizes")
    job = hr.Job("full", out.write.collect(name="out"), parallelism=1)
    table = job.run("threads").collected["out"]
    assert table["rows"].to_pylist() == [512] * (ROWS // 512) + [ROWS % 512]
    assert table["first"].to_pylist() == list(range(0, ROWS, 512))


def test_what_there_is_goes_after_the_linger() -> None:
    """At 200 rows a second a batch of a million would never fill."""
    rows = hr.read.sequence(100, name="in", rate=200.0)
    out = rows.map_batches(sizes, SIZES, batch_size=1_000_000, linger="100ms", name="sizes")
    job = hr.Job("linger", out.write.collect(name="out"), parallelism=1)
    found = job.run("threads").collected["out"]["rows"].to_pylist()
    assert sum(found) == 100
    assert 2 <= len(found) <= 8


def test_rows_that_wait_survive_a_failure(tmp_path: Path) -> None:
    """Unaligned checkpoints while rows wait, and a call that fails once."""
    flag = tmp_path / "fails"
    flag.touch()

    def fragile(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["sequence"][-1].as_py() > 600 and flag.exists():
            flag.unlink()
            raise ValueError("once")
        return batch

    rows = hr.read.sequence(1_000, keys=5, name="in", rate=1_000.0)
    out = rows.map_batches(fragile, batch_size=150, linger="10s", name="fragile")
    job = hr.Job(
        "waiting",
        out.write.collect(name="out"),
        parallelism=2,
        checkpoints=hr.Checkpoints(str(tmp_path / "chk"), interval="50ms", mode="unaligned"),
    )
    result = job.run("threads")
    assert not flag.exists()
    assert sorted(result.collected["out"]["sequence"].to_pylist()) == list(range(1_000))


def test_pandas_in_and_out() -> None:
    def double(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(sequence=frame["sequence"] * 2)

    rows = hr.read.sequence(1_000, name="in")
    out = rows.map_batches(double, batch_format="pandas", name="double")
    job = hr.Job("pandas", out.write.collect(name="out"), parallelism=1)
    found = job.run("threads").collected["out"]["sequence"].to_pylist()
    assert found == list(range(0, 2_000, 2))


LOCK = threading.Lock()
LIVES: list[tuple[str, int]] = []


class Model:
    """Notes its beginning and end, by object."""

    def __init__(self) -> None:
        with LOCK:
            LIVES.append(("made", id(self)))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def close(self) -> None:
        with LOCK:
            LIVES.append(("closed", id(self)))


@pytest.mark.parametrize(("share", "instances"), [("subtask", 3), ("worker", 1)])
def test_instances_are_made_and_closed_for_each_subtask_or_worker(
    share: Any, instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "LIVES", [])
    rows = hr.read.sequence(1_000, name="in").rebalance()
    out = rows.map_batches(Model, share=share, name="model")
    hr.Job("share", out.write.blackhole(name="out"), parallelism=3).run("threads")
    assert sorted(what for what, _ in LIVES) == ["closed"] * instances + ["made"] * instances


def test_a_function_of_fixed_cost_is_soon_called_with_many_rows() -> None:
    """20 ms a call: row by row 20,000 records would take 400 s, in calls of 64 rows 6 s."""

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.02)
        return batch

    rows = hr.read.sequence(20_000, name="in").map_batches(slow, name="slow")
    job = hr.Job("slow", rows.write.blackhole(name="out"), parallelism=1)
    began = time.monotonic()
    job.run("threads")
    assert time.monotonic() - began < 4
