"""A savepoint of all regions is read as written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.engine.session import region_savepoints
from headrace.engine.session.region_plan import RegionsPlan


def plan(folder: Path) -> RegionsPlan:
    logged = hr.read.sequence(10, name="numbers").logged(name="log")
    out = logged.write.blackhole(name="out")
    job = hr.Job("two", out, checkpoints=hr.Checkpoints(str(folder)), parallelism=1)
    return job._regions_plan(job.options)


def test_a_savepoint_has_the_next_free_number_and_is_read_back(tmp_path: Path) -> None:
    two = plan(tmp_path)
    first = region_savepoints.write(two, {"numbers": 3, "log": 4})
    second = region_savepoints.write(two, {"numbers": 5, "log": 5})
    assert (first.rpartition("/")[2], second.rpartition("/")[2]) == ("sav-1", "sav-2")
    assert region_savepoints.read(two, first) == {"numbers": 3, "log": 4}
    assert region_savepoints.read(two, second + "/") == {"numbers": 5, "log": 5}


def test_no_flipped_bit_names_another_savepoint(tmp_path: Path) -> None:
    two = plan(tmp_path)
    saved = region_savepoints.write(two, {"numbers": 3, "log": 4})
    path = tmp_path / saved.removeprefix(str(tmp_path)).lstrip("/")
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(hr.UserError, match="damaged"):
            region_savepoints.read(two, saved)


def test_mistakes_are_told(tmp_path: Path) -> None:
    two = plan(tmp_path)
    saved = region_savepoints.write(two, {"numbers": 3, "elsewhere": 4})
    cases: list[tuple[str | int, str]] = [
        (saved, "holds the regions elsewhere, numbers, and the job has log, numbers"),
        (saved.replace("sav-1", "sav-7"), "there is no such savepoint"),
        (saved.replace("sav-1", "chk-1"), "one of its savepoints"),
        (7, "one of its savepoints"),
    ]
    for restore, message in cases:
        with pytest.raises(hr.UserError, match=message):
            region_savepoints.read(two, restore)
