"""Environments of peers: a missing tool and a failed installation are one sentence, and only a
complete folder is used again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.bench.peers.environments import Unavailable, install_with, java_of, made_once


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_missing_tool_is_told_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="java is not on PATH: install a JDK"):
        java_of("flink")
    assert list(tmp_path.iterdir()) == []


def test_a_complete_environment_is_installed_once_and_a_torn_one_anew() -> None:
    begun: list[bool] = []

    def install(folder: Path) -> None:
        begun.append((folder / "left").exists())
        (folder / "left").touch()
        if len(begun) == 1:
            raise Unavailable("no network")

    with pytest.raises(Unavailable, match="no network"):
        made_once("engine-1", install)
    assert made_once("engine-1", install) == made_once("engine-1", install)
    assert begun == [False, False]


def test_an_installer_that_fails_is_told_with_its_error() -> None:
    command = [
        sys.executable,
        "-c",
        "print('some way'); raise SystemExit('ERROR: no such package')",
    ]
    with pytest.raises(Unavailable, match="could not install it: ERROR: no such package"):
        install_with(command, "pip could not install it")
