"""A failure when one reader of a source has read all its files and another has files to read."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

#: Rows up to the end of each file. The first one lasts until it fails.
ENDS = (400_000, 401_000, 402_000)


def failing_once(folder: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["n"][0].as_py() < ENDS[0] and not (folder / "failed").exists():
            time.sleep(0.1)
            if (folder / "go").exists():
                (folder / "failed").touch()
                raise ValueError("planted")
        return batch

    return pass_on


def written(folder: Path) -> list[int]:
    found = (pq.read_table(path)["n"].to_pylist() for path in folder.glob("part-*"))
    return sorted(n for numbers in found for n in numbers)


@pytest.mark.parametrize("shuffled", [False, True])
def test_files_of_a_reader_that_goes_on_are_read_after_another_has_ended(
    tmp_path: Path, shuffled: bool
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    # Subtask 0 reads files 0 and 2, subtask 1 file 1; when that is read, 0 and 2 are dealt anew.
    for first, end in pairwise((0, *ENDS)):
        pq.write_table(pa.table({"n": range(first, end)}), source / f"{end}.parquet")
    rows = hr.read.parquet(str(source), name="rows")
    rows = rows.map_batches(failing_once(tmp_path), schema=rows.schema)
    if shuffled:
        rows = rows.rebalance()
    job = hr.Job(
        "half",
        rows.write.parquet(str(out), name="out"),
        checkpoints=hr.Checkpoints(str(tmp_path / "ckpt"), interval="50ms"),
        parallelism=2,
    )
    handle = job.start("threads")
    while ENDS[1] - 1 not in written(out):
        handle.checkpoint()
    for _ in range(3):
        handle.checkpoint()
    (tmp_path / "go").touch()
    result = handle.wait()
    assert result.restarts == 1
    assert written(out) == list(range(ENDS[-1]))
