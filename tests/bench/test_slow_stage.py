"""The pipeline with a slow stage: its measure map, and what is made of its samples."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.bench.slow_stage import Measure


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
