"""Checkpoints of older releases are restored: one of each version of the format lies here.

`version-N/` holds a savepoint of the job below, taken in mid-stream and unaligned, so that it holds
state on the heap and in RocksDB, and records in flight; "format, never change". To add one after
`VERSION` was raised: python -m tests.formats.make, and commit the new folder. The old ones stay.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.inflight import segment
from headrace.recovery import codec
from headrace.recovery.codec import decode_metadata
from headrace.recovery.sizes import sizes_of
from tests.formats.make import KEYS, RECORDS, job_of

HERE = Path(__file__).parent
VERSIONS = sorted(HERE.glob("version-*"), key=lambda path: int(path.name.partition("-")[2]))


def test_each_version_of_the_format_has_a_checkpoint() -> None:
    stated = [f"version-{number + 1}" for number in range(codec.VERSION)]
    assert [path.name for path in VERSIONS] == stated, "python -m tests.formats.make"
    assert segment.VERSION == 1, "keep a checkpoint of each version of segments, too"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_the_checkpoint_holds_state_of_both_backends_and_records_in_flight(version: Path) -> None:
    (file,) = version.rglob("metadata")
    metadata = decode_metadata(file.read_bytes())
    assert metadata.mode == "unaligned"
    assert any(subtask.states for subtask in metadata.subtasks)
    assert any(subtask.databases for subtask in metadata.subtasks)
    assert sizes_of(metadata).inflight_records > 0


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_job_goes_on_from_it_at_another_parallelism(version: Path, tmp_path: Path) -> None:
    shutil.copytree(version, tmp_path / "old")
    (savepoint,) = (tmp_path / "old" / "formats").glob("sav-*")
    job = job_of(str(tmp_path / "new"), parallelism=3, delay_s=0.0)
    collected = job.run("threads", restore=str(savepoint)).collected
    for name in ("heap", "rocks"):
        counts = collected[name].to_pylist()
        assert len(counts) == KEYS
        assert sum(row["n"] for row in counts) == RECORDS
        assert sum(row["total"] for row in counts) == RECORDS * (RECORDS - 1) // 2
