"""Shared files into a local folder: linked where that is possible and safe, copied elsewhere,
checked in any case.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.shared_files import bring
from headrace.inflight.segment import CorruptBlob, checksum_of
from headrace.recovery.handles import SharedFile
from headrace.recovery.layout import handle_path, savepoint_file_path, shared_path
from headrace.recovery.store import NotFound

DATA = random.Random(7).randbytes((1 << 20) + 17)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "database").mkdir()
    return tmp_path / "database"


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path / "checkpoints"))


def stored(store: FsspecStore, path: str) -> SharedFile:
    store.put(path, DATA)
    return SharedFile("7.sst", handle_path("job", path), len(DATA), checksum_of(DATA))


def of_checkpoint(store: FsspecStore) -> SharedFile:
    return stored(store, shared_path("job", 5, 0, 1, checksum_of(DATA)))


def names_of(folder: Path) -> int:
    return (folder / "7.sst").stat().st_nlink


def test_a_file_of_a_checkpoint_is_linked_and_outlives_its_removal(
    store: FsspecStore, folder: Path
) -> None:
    file = of_checkpoint(store)
    bring(store, "job", file, str(folder), links=True)
    assert names_of(folder) == 2
    store.delete(f"job/{file.path}")
    assert (folder / "7.sst").read_bytes() == DATA


def test_a_database_that_drops_its_file_leaves_that_of_the_checkpoint(
    store: FsspecStore, folder: Path
) -> None:
    file = of_checkpoint(store)
    bring(store, "job", file, str(folder), links=True)
    (folder / "7.sst").unlink()
    assert store.get(f"job/{file.path}") == DATA


def test_what_others_may_write_over_is_copied(store: FsspecStore, folder: Path) -> None:
    bring(store, "job", of_checkpoint(store), str(folder), links=False)
    assert names_of(folder) == 1
    (folder / "7.sst").unlink()
    savepoint = stored(store, savepoint_file_path("job", 6, 0, 1, checksum_of(DATA)))
    bring(store, "job", savepoint, str(folder), links=True)
    assert names_of(folder) == 1


def test_where_links_are_impossible_it_is_copied(
    store: FsspecStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    file = of_checkpoint(store)
    monkeypatch.setattr(os, "link", refuse)
    bring(store, "job", file, str(folder), links=True)
    assert (folder / "7.sst").read_bytes() == DATA
    assert names_of(folder) == 1


def test_an_object_store_is_copied_from(folder: Path) -> None:
    store = FsspecStore("memory://shared-files")
    bring(store, "job", of_checkpoint(store), str(folder), links=True)
    assert (folder / "7.sst").read_bytes() == DATA


@pytest.mark.parametrize("at", [0, len(DATA) - 1])
def test_a_linked_file_is_checked_to_its_end(
    store: FsspecStore, folder: Path, tmp_path: Path, at: int
) -> None:
    file = of_checkpoint(store)
    damaged = bytearray(DATA)
    damaged[at] ^= 1
    (tmp_path / "checkpoints" / "job" / file.path).write_bytes(damaged)
    with pytest.raises(CorruptBlob, match="xxh3"):
        bring(store, "job", file, str(folder), links=True)


def test_a_link_in_the_place_of_a_file_is_refused(
    store: FsspecStore, folder: Path, tmp_path: Path
) -> None:
    file = of_checkpoint(store)
    place = tmp_path / "checkpoints" / "job" / file.path
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotFound):
        bring(store, "job", file, str(folder), links=True)
    assert list(folder.iterdir()) == []
