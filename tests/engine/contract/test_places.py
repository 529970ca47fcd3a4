"""Directories as users name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.contract.places import absolute, redacted


def test_a_path_is_told_from_the_root_and_a_url_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("checkpoints") == f"{tmp_path}/checkpoints"
    assert absolute("/checkpoints/") == "/checkpoints"
    assert absolute("s3://bucket/checkpoints") == "s3://bucket/checkpoints"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://ann:secret@host/dir", "sftp://***@host/dir"),
        ("in s3://key:se@cret@bucket/x, then /a@b", "in s3://***@bucket/x, then /a@b"),
        ("simplecache::ftp://ann:secret@host", "simplecache::ftp://***@host"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("/data/ann@host/x", "/data/ann@host/x"),
        ("at host=h password=secret user=u", "at host=h password=*** user=u"),
        ("host=h password = 's e\\'cret' user=u", "host=h password = *** user=u"),
        ("postgresql://host/db?password=secret&a=b", "postgresql://host/db?password=***&a=b"),
    ],
)
def test_credentials_of_urls_are_not_shown(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown
