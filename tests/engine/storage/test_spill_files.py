"""Runs on a real disk: written, read, checked, gone."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.storage.spill_files import CorruptRun, SpillFiles
from headrace.inflight.segment import checksum_of
from headrace.inflight.spill import WriteRun

HERE = SubtaskId(1, 0)
BATCHES = [pa.record_batch({"x": [1, 2, 3]}), pa.record_batch({"x": [4, 5]})]
ORDER = WriteRun(4, ChannelId(0, 0, 0), (Buffer.of(10, BATCHES[0]), Buffer.of(13, BATCHES[1])))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def files(folder: Path) -> SpillFiles:
    return SpillFiles(lambda: str(folder))


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_run_reads_back_as_written(files: SpillFiles) -> None:
    file = files.write(HERE, ORDER)
    assert files.read(HERE, file)["x"].to_pylist() == [1, 2, 3, 4, 5]
    assert checksum_of(files.content(HERE, file)) == file.checksum


@pytest.mark.parametrize("damage", ["torn", "changed", "gone"])
def test_a_damaged_run_is_detected(files: SpillFiles, folder: Path, damage: str) -> None:
    file = files.write(HERE, ORDER)
    path = only_file(folder)
    if damage == "torn":
        os.truncate(path, 40)
    elif damage == "changed":
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(CorruptRun, match="1-0-4"):
        files.read(HERE, file)


def test_a_copy_outlives_the_run(files: SpillFiles, folder: Path) -> None:
    file = files.write(HERE, ORDER)
    content = files.content(HERE, file)
    files.delete(HERE, file)
    assert list(folder.iterdir()) == []
    assert checksum_of(content) == file.checksum


def test_nothing_is_left_when_the_attempt_ends(files: SpillFiles, folder: Path) -> None:
    files.write(HERE, ORDER)
    files.close()
    assert not folder.exists()


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may be larger than 64 bytes: a write fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.usefixtures("small_files")
def test_a_write_that_fails_leaves_nothing(files: SpillFiles, folder: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        files.write(HERE, ORDER)
    assert list(folder.iterdir()) == []
