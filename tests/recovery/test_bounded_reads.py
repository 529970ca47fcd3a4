"""Files of 8 GiB in the places of small ones are refused by their size, before they are read."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog, claims, links
from headrace.recovery.codec import CorruptMetadata
from headrace.recovery.handles import SharedFile
from headrace.recovery.layout import CheckpointKind, claimed_path, link_path, metadata_path
from headrace.recovery.layout import owner_path as owner_path_of
from headrace.recovery.shared_files import read_shared
from headrace.recovery.store import StoreRejected, TooLarge

GIB = 1024**3
MEMORY_BYTES_MAX = 1024**2
CHK = CheckpointKind.CHECKPOINT
ME = claims.Claimer(directory="file:///here", job="me")
FILE = SharedFile("000007.sst", "shared/7-a", 100, "0" * 16)


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path))


def plant(store: FsspecStore, path: str) -> None:
    """A sparse file of 8 GiB, where reading more than a mebibyte fails."""
    target = Path(store.url, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        os.truncate(file.fileno(), 8 * GIB)


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    whole = os.pread

    def bounded(file: int, length: int, offset: int) -> bytes:
        assert length <= MEMORY_BYTES_MAX, f"{length} bytes are read at once"
        return whole(file, length, offset)

    monkeypatch.setattr(os, "pread", bounded)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MEMORY_BYTES_MAX


def test_metadata_is_damaged(store: FsspecStore) -> None:
    plant(store, metadata_path("job", 7))
    with pytest.raises(CorruptMetadata, match=r"expected at most \d+ bytes, found more than"):
        catalog.load(store, "job", 7)
    with pytest.raises(catalog.NoValidCheckpoint, match="at most"):
        catalog.newest_valid(store, "job")


def test_a_link_is_damaged(store: FsspecStore) -> None:
    plant(store, link_path("job", 7))
    good, damaged = links.read_all(store, "job")
    assert good == []
    assert damaged == [links.Damaged(7, "more than 65536 bytes")]


def test_a_claim_is_unreadable_and_taken_over(store: FsspecStore) -> None:
    plant(store, claimed_path("job", 7, CHK))
    claims.check_unclaimed(store, "job", 7, CHK, ME)
    claims.acquire(store, "job", 7, CHK, ME)
    with pytest.raises(claims.AlreadyClaimed):
        other = claims.Claimer(directory="file:///there", job="other")
        claims.check_unclaimed(store, "job", 7, CHK, other)


def test_metadata_of_a_claimed_checkpoint_keeps_it_whole(store: FsspecStore) -> None:
    claims.acquire(store, "job", 7, CHK, ME)
    plant(store, metadata_path("job", 7))
    with pytest.raises(claims.NotReleased, match="at most"):
        claims.release(store, "job", 7, CHK, ME)


def test_an_owner_is_refused(store: FsspecStore) -> None:
    plant(store, owner_path_of("job"))
    with pytest.raises(StoreRejected, match="more than 1024 bytes"):
        catalog.owner_token(store, "job", "abc")


def test_a_shared_file_is_damaged(store: FsspecStore) -> None:
    plant(store, "job/shared/7-a")
    with pytest.raises(Exception, match="expected 100 bytes, found more than 100 bytes"):
        read_shared(store, "job", FILE)


@pytest.mark.parametrize("url", ["{}", "memory://bounded-reads"])
def test_a_limit_is_of_bytes_to_the_end(url: str, tmp_path: Path) -> None:
    store = FsspecStore(url.format(tmp_path))
    store.put("a/b", b"0123456789")
    assert store.get("a/b", bytes_max=10) == b"0123456789"
    assert store.get("a/b", 4, bytes_max=6) == b"456789"
    assert store.get("a/b", 4, 2, 2) == b"45"
    with pytest.raises(TooLarge, match="a/b: more than 9 bytes"):
        store.get("a/b", bytes_max=9)
    with pytest.raises(TooLarge):
        store.get("a/b", 4, bytes_max=5)
