"""The checkpoint directory as a driver uses it: how it reaches others, and the name under which
its job claims.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.drivers.checkpoint_directory import CheckpointDirectory
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery.claims import Claimer


def test_an_empty_url_is_the_directory_itself_and_any_other_is_opened(tmp_path: Path) -> None:
    own = FsspecStore(str(tmp_path / "own"))
    opened: list[str] = []

    def open_other(url: str) -> FsspecStore:
        opened.append(url)
        return FsspecStore(url)

    directory = CheckpointDirectory("job", own, str(tmp_path / "own"), open_other)
    assert directory.at("") is own
    assert directory.at(str(tmp_path / "other")) is not own
    assert opened == [str(tmp_path / "other")]


def test_a_job_without_checkpoints_has_no_directory_of_its_own() -> None:
    with pytest.raises(AssertionError, match="keeps no checkpoints"):
        CheckpointDirectory("job", None).at("")


def test_a_claimer_is_known_by_its_directory_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = Claimer(directory=f"{tmp_path}/ckpt", job="job")
    assert CheckpointDirectory("job", None, "ckpt").claimer == expected
