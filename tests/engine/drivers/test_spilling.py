"""Blocked channels spill to a real disk, and the job's answer is what it is without."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.storage.spill_files import SpillFiles

RECORDS = 60_000
SLOW = 150


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.01 * batch.num_rows)
    return batch


def passed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def job(folder: Path, *, disk: str = "1GiB") -> hr.Job:
    """A fast and a slow branch into one union; the fast branch's channel is blocked for long."""
    fast = hr.from_source(SequenceSource(rows=RECORDS, payload_bytes=64), name="fast")
    slow = hr.from_source(SequenceSource(rows=SLOW, payload_bytes=64), name="slow")
    waiting = slow.shuffle().map_batches(slowly, name="slow map").shuffle()
    both = fast.shuffle().map_batches(passed_on, name="fast map").union(waiting)
    return hr.Job(
        "spilling",
        both.select("sequence").write.collect(name="out"),
        parallelism=1,
        checkpoints=hr.Checkpoints(
            str(folder / "checkpoints"),
            interval="100ms",
            alignment_timeout=None,
            spill_blocked=True,
        ),
        network=hr.Network(window="64KiB", buffer="16KiB", spill_memory="32KiB", spill_disk=disk),
        state=hr.State(directory=str(folder / "local")),
    )


@pytest.mark.parametrize("disk", ["1GiB", "40KiB"])
def test_every_record_comes_once_and_no_run_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    written: list[int] = []
    write = SpillFiles.write

    def noted(self: SpillFiles, *arguments: object) -> object:
        written.append(1)
        return write(self, *arguments)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(SpillFiles, "write", noted)
    out = job(tmp_path, disk=disk).run("threads").collected["out"]
    assert written, "nothing was spilled: the test proves nothing"
    counts = pc.value_counts(out["sequence"]).field("counts").to_pylist()
    assert sorted(counts) == [1] * (RECORDS - SLOW) + [2] * SLOW
    assert list((tmp_path / "local").iterdir()) == []
