"""Folders of workers: made when needed, kept while somebody lives, removed when nobody does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.contract.errors import HeadraceError
from headrace.engine.storage.working_folder import WorkingFolder

KILLED = """
import os, sys
from pathlib import Path
from headrace.engine.storage.working_folder import WorkingFolder
Path(WorkingFolder(sys.argv[1]).new()).mkdir()
os.kill(os.getpid(), 9)
"""


def folders(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    WorkingFolder(str(tmp_path / "state")).close()
    assert folders(tmp_path) == []


def test_every_database_gets_a_place_of_its_own_and_all_go_together(tmp_path: Path) -> None:
    working = WorkingFolder(str(tmp_path / "a" / "state"))
    places = [Path(working.new()) for _ in range(3)]
    assert len(set(places)) == 3
    for place in places:
        place.mkdir()
    working.close()
    assert folders(tmp_path / "a" / "state") == []
    working.close()
    with pytest.raises(FileNotFoundError):
        working.new()


def test_what_a_killed_worker_left_is_swept_and_what_a_living_one_has_is_not(
    tmp_path: Path,
) -> None:
    ours = WorkingFolder(str(tmp_path))
    ours.new()
    (mine,) = folders(tmp_path)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(folders(tmp_path)) == 2
    (tmp_path / "headrace-state-somebody").mkdir()
    next_one = WorkingFolder(str(tmp_path))
    next_one.new()
    left = folders(tmp_path)
    assert mine in left
    assert "headrace-state-somebody" in left, "without a lock file it is not known to be ours"
    assert len(left) == 3
    next_one.close()
    ours.close()


def test_a_place_that_cannot_hold_folders_is_named(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.write_text("a file")
    with pytest.raises(HeadraceError, match=rf"{place} .*state\.directory.*File exists"):
        WorkingFolder(str(place)).new()
