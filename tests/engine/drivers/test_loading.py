"""A worker that does not see the driver's checkpoint directory is told so before it works."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.engine.contract.errors import UserError
from headrace.engine.drivers.loading import check_directory
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery.catalog import claim_epoch


def test_the_file_of_the_epoch_tells_the_driver_s_directory(tmp_path: Path) -> None:
    theirs, ours = FsspecStore(str(tmp_path / "theirs")), FsspecStore(str(tmp_path / "ours"))
    epoch = claim_epoch(theirs, "job")
    check_directory(theirs, "job", epoch, 3)
    check_directory(None, "job", epoch, 3)
    said = (
        "^worker 3 does not see the driver's checkpoint directory: job/epochs/1, which the driver"
        " has written, is not there; use a directory that all processes"
    )
    with pytest.raises(UserError, match=said):
        check_directory(ours, "job", epoch, 3)


def in_memory(name: str) -> hr.Job:
    numbers = hr.read.sequence(1000, name="numbers")
    return hr.Job(
        "job", numbers.write.collect(name="out"), parallelism=2, checkpoints=f"memory://{name}"
    )


def test_memory_is_a_directory_of_one_process() -> None:
    """Before, the job ran, and could not restart after the first failure."""
    in_memory("loading-threads").run("threads")
    with pytest.raises(hr.JobFailed, match="does not see the driver's checkpoint directory"):
        in_memory("loading-processes").run("processes")
