"""The folder of what is under way, and names in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.connectors.filesystem import locate
from headrace.engine.connectors.work_folder import is_inside, safe_name, work_folder, work_name


def test_readers_of_the_output_pass_over_the_folder(tmp_path: Path) -> None:
    assert work_folder(locate(str(tmp_path), {})) == f"{tmp_path}/_headrace"


def test_every_owner_has_a_place_below_its_job_and_sink() -> None:
    assert work_name("a job", "out/1", "aa") == "a job/out%2F1/aa"
    assert work_name("a job", "out/1", "") == "a job/out%2F1"


def test_different_names_are_different_parts_of_a_path() -> None:
    names = ["a", "a.b", "a/b", "a%2Fb", "..", "", "ü" * 300, "ü" * 300 + "2"]
    parts = [safe_name(name) for name in names]
    assert len(set(parts)) == len(names)
    assert not any("/" in part or "." in part for part in parts)
    assert max(map(len, parts)) <= 150


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "..", "a/../b", "a/.b", "a\\b"])
def test_a_path_that_may_lead_out_is_not_inside(path: str) -> None:
    assert not is_inside(path)
    assert is_inside("a job/out%2F1/0-1-1-aa")
