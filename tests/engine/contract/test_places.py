"""Directories as users name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.contract.places import absolute


def test_a_path_is_told_from_the_root_and_a_url_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("checkpoints") == f"{tmp_path}/checkpoints"
    assert absolute("/checkpoints/") == "/checkpoints"
    assert absolute("s3://bucket/checkpoints") == "s3://bucket/checkpoints"
