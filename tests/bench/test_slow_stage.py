"""The pipeline with a slow stage: its measure map, and what is made of its samples."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.bench.slow_stage import (
    Arm,
    Measure,
    Sleeping,
    Sleepy,
    _hot_key,
    observe,
    records_for,
    work_rate,
)


def measured(folder: Path, rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    emitted = np.full(rows, time.time_ns(), dtype=np.int64)
    Measure(str(folder))(pa.record_batch({"emitted": emitted}))
    files = [np.fromfile(path, dtype=np.int64).reshape(-1, 3) for path in folder.iterdir()]
    return np.concatenate(files) if files else np.empty((0, 3), dtype=np.int64)


# The measure map's file is closed with its process.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 31, 47, 63, 8191])
def test_every_record_of_a_batch_counts_once(rows: int, tmp_path: Path) -> None:
    samples = measured(tmp_path, rows)
    assert samples[:, 2].sum() == rows
    assert len(samples) < 32


def test_an_aligned_checkpoint_that_does_not_end_is_seen_under_way() -> None:
    arm = Arm("aligned", Sleeping(3600.0), warm_up_s=0.5, seconds=1.0, patience_s=1.5)
    seen = observe(arm)
    assert seen.completed == []
    assert seen.duration_ms(50) is None
    assert seen.underway_ms is not None
    # Triggered a second after the start, it has been under way for two, at least.
    assert 1_500 < seen.underway_ms < 60_000


def test_an_arm_is_watched_until_it_has_its_checkpoints() -> None:
    arm = Arm("unaligned", Sleepy(0.1), warm_up_s=0.5, seconds=0.1, checkpoints_min=2)
    seen = observe(arm)
    assert len(seen.completed) >= 2
    assert seen.seconds > 1.0


def test_the_work_of_an_arm_is_the_same_for_every_mode() -> None:
    assert records_for(0.1, 2, 15.0) == 300_000
    assert records_for(0.0, 2, 2.0) == records_for(1e-9, 2, 2.0) > 0
    rate = work_rate(Arm("unaligned", Sleepy(0.1), interval="0.2s"), 10_000)
    # Two subtasks sleep 0.1 ms a record, so half a second is the least.
    assert 0 < rate <= 20_000


def test_three_of_ten_records_have_the_hot_key() -> None:
    keys = _hot_key(np.arange(10_000, dtype=np.int64))
    assert np.mean(keys == 0) == pytest.approx(0.3, abs=0.01)
    # Those of one subtask of the source, too: it makes every second number.
    assert np.mean(keys[::2] == 0) == pytest.approx(0.3, abs=0.01)
    assert len(np.unique(keys)) > 4_000


def test_an_arm_runs_skewed_on_slowed_storage() -> None:
    arm = Arm(
        "unaligned",
        Sleepy(0.1),
        storage="slowed",
        skewed=True,
        warm_up_s=0.5,
        seconds=0.1,
        checkpoints_min=1,
    )
    seen = observe(arm)
    assert seen.restarts == 0
    took_ms = seen.duration_ms(50)
    assert took_ms is not None
    # The request for the metadata, at least.
    assert took_ms > 30
    assert (seen.floor_ms(50) or 0.0) > 30
