"""A loop that holds a hundred times its window goes through local disk, and ends exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.engine.storage.spill_files import SpillFiles

WINDOW_BYTES = 4096
ROWS, ROUNDS = 60, 10
LEAVES = ROWS * 2**ROUNDS


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Two records for each that has rounds to go."""
    left = np.repeat(batch.column("left").to_numpy(), 2) - 1
    return pa.record_batch({"left": pa.array(left, pa.int64())})


def a_round(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
    again = loop.filter(pc.field("left") > 0).map_batches(doubled, name="doubled")
    return again.rebalance(), loop.filter(pc.field("left") == 0)


def job(folder: Path, *, disk: str = "1GiB") -> hr.Job:
    rows = [pa.record_batch({"left": pa.array([ROUNDS] * ROWS, pa.int64())})]
    leaves = hr.read.batches(rows, name="rows").iterate(a_round, name="rounds")
    return hr.Job(
        "doubling",
        leaves.write.collect(name="out"),
        parallelism=1,
        network=hr.Network(window=WINDOW_BYTES, buffer=1024, spill_memory="16KiB", spill_disk=disk),
        state=hr.State(directory=str(folder)),
    )


class Seen:
    """Bytes of all runs that were written, and how many writes fail first."""

    def __init__(self, patch: pytest.MonkeyPatch, failures: int = 0) -> None:
        self.rows = 0
        self.failures = failures
        write = SpillFiles.write

        def noted(files: SpillFiles, *arguments: object) -> object:
            if self.failures:
                self.failures -= 1
                raise OSError(28, "No space left on device")
            file = write(files, *arguments)  # type: ignore[arg-type]  # passed on
            self.rows += file.rows
            return file

        patch.setattr(SpillFiles, "write", noted)


@pytest.mark.parametrize("failures", [0, 2], ids=["disk", "disk full for a while"])
def test_a_loop_of_a_hundred_windows_ends_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    seen = Seen(monkeypatch, failures)
    out = job(tmp_path).run("threads").collected["out"]
    assert out.num_rows == LEAVES
    assert pc.sum(out["left"]).as_py() == 0
    assert seen.rows * 8 > 10 * WINDOW_BYTES
    assert seen.failures == 0
    assert list(tmp_path.iterdir()) == []


def test_a_loop_beyond_its_disk_fails_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(hr.JobFailed, match=r"rounds.*holds too much.*raise network\.spill_disk"):
        job(tmp_path, disk="8KiB").run("threads")
