"""A file is given out in pieces that make it up, as often as it is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.file_content import PIECE_BYTES, FileContent


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
def test_the_pieces_make_up_the_file_every_time(file: Path, size: int) -> None:
    data = os.urandom(size)
    file.write_bytes(data)
    content = FileContent(str(file))
    assert b"".join(content) == data
    assert b"".join(content) == data
    assert all(len(piece) <= PIECE_BYTES for piece in content)
    assert content[1:] == list(content)[1:]
    assert len(content) == len(list(content))


def test_there_is_no_piece_behind_the_end(file: Path) -> None:
    file.write_bytes(b"some")
    assert FileContent(str(file))[-1] == b"some"
    with pytest.raises(IndexError):
        FileContent(str(file))[1]


def test_a_file_that_became_shorter_is_an_error(file: Path) -> None:
    file.write_bytes(b"some")
    content = FileContent(str(file))
    os.truncate(file, 2)
    with pytest.raises(OSError, match="ended at 2"):
        list(content)


@pytest.mark.parametrize("url", ["{}", "memory://file-content{}"])
def test_storage_takes_it_without_having_it_in_one_piece(
    file: Path, tmp_path: Path, url: str
) -> None:
    data = os.urandom(6 * PIECE_BYTES + 5)
    file.write_bytes(data)
    store = FsspecStore(url.format(tmp_path / "store"))
    store.put("copy", FileContent(str(file)))
    assert store.get("copy") == data
