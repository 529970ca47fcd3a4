"""Failed batches are kept beside the checkpoints, if they can be, and never in the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engine.drivers.failed_batches import FailedBatches
from headrace.engine.storage.checkpoint_storage import open_store

BATCH = pa.record_batch({"x": [1, 2, 3]})


@pytest.fixture
def writers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_the_latest_batch_is_a_file_beside_the_checkpoints(
    tmp_path: Path, writers: ThreadPoolExecutor
) -> None:
    kept = FailedBatches(open_store(str(tmp_path)), str(tmp_path), "job", writers)
    for batch in (BATCH, BATCH.slice(1)):
        place = kept.keep("parse", 2, batch)
    kept.join(20.0)
    assert place == f"{tmp_path}/job/failed/parse-2.arrow"
    assert pa.ipc.open_file(place).read_all().to_pydict() == {"x": [2, 3]}


def test_nothing_is_kept_without_checkpoints_or_of_a_large_batch(
    tmp_path: Path, writers: ThreadPoolExecutor
) -> None:
    assert FailedBatches(None, "", "job", writers).keep("parse", 0, BATCH) == ""
    kept = FailedBatches(open_store(str(tmp_path)), str(tmp_path), "job", writers)
    large = pa.record_batch({"x": pa.nulls((2 << 20) + 1, pa.int64())})
    assert kept.keep("parse", 0, large) == ""
    kept.join(20.0)
    assert not (tmp_path / "job").exists()


def test_a_failure_of_storage_is_only_logged(
    tmp_path: Path, writers: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "job").write_text("a file where the folder should be")
    kept = FailedBatches(store, str(tmp_path), "job", writers)
    assert kept.keep("parse", 0, BATCH)
    kept.join(20.0)
    assert "the failed batch was not kept" in caplog.text


def test_storage_that_hangs_delays_no_report(tmp_path: Path, writers: ThreadPoolExecutor) -> None:
    hanging = threading.Event()
    writers.submit(hanging.wait, 20.0)
    kept = FailedBatches(open_store(str(tmp_path)), str(tmp_path), "job", writers)
    assert kept.keep("parse", 0, BATCH)
    kept.join(0.01)
    assert not (tmp_path / "job").exists()
    hanging.set()


def test_a_worker_that_ends_keeps_nothing_more(tmp_path: Path, writers: ThreadPoolExecutor) -> None:
    writers.shutdown()
    kept = FailedBatches(open_store(str(tmp_path)), str(tmp_path), "job", writers)
    assert kept.keep("parse", 0, BATCH) == ""
    kept.join(20.0)
    assert not (tmp_path / "job").exists()
