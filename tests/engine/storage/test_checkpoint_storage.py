"""One contract for every backend, and clear refusals for storage that cannot keep it."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from headrace.engine.connectors.filesystem import locate
from headrace.engine.contract.errors import StorageUnreachable, UserError
from headrace.engine.storage.checkpoint_storage import FsspecStore, open_store
from headrace.recovery.store import (
    AlreadyExists,
    NotFound,
    Store,
    StoreError,
    StoreRejected,
    StoreUncertain,
)

PATH = "orders/chk-1/metadata"


@pytest.fixture(params=["plain", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "plain": str(tmp_path / "checkpoints"),
        "file": f"file://{tmp_path}/checkpoints",
        "memory": f"memory://{tmp_path.name}-{id(request)}/checkpoints",
    }[request.param]


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)


class Shaky(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A remote storage whose every answer is `failure`, or that creates without looking."""

    protocol = "shaky"
    store: dict[str, Any] = {}  # noqa: RUF012  # fsspec's own convention for memory file systems
    pseudo_dirs: list[str] = [""]  # noqa: RUF012  # as above
    failure: Exception | None = None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        super().pipe_file(path, value, mode="overwrite")


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch) -> type[Shaky]:
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    monkeypatch.setattr(Shaky, "failure", None)
    return Shaky


def test_an_object_comes_back_whole_and_in_parts(store: Store) -> None:
    store.put(PATH, memoryview(b"0123456789"))
    assert store.get(PATH) == b"0123456789"
    assert store.get(PATH, 3) == b"3456789"
    assert store.get(PATH, 3, 4) == b"3456"
    assert store.get(PATH, 10, 0) == b""


def test_a_put_replaces_and_a_create_does_not(store: Store) -> None:
    store.create(PATH, b"first")
    with pytest.raises(AlreadyExists):
        store.create(PATH, b"second")
    assert store.get(PATH) == b"first"
    store.put(PATH, b"third")
    assert store.get(PATH) == b"third"


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (5, 6), (11, 1), (-1, 1), (0, -1)])
def test_reading_more_than_there_is_is_refused(store: Store, offset: int, length: int) -> None:
    store.put(PATH, b"0123456789")
    with pytest.raises(StoreRejected):
        store.get(PATH, offset, length)


def test_an_absent_object_is_not_found_and_deleting_it_is_no_error(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get(PATH)
    store.delete(PATH)
    store.put(PATH, b"x")
    store.delete(PATH)
    with pytest.raises(NotFound):
        store.get(PATH)


def test_listing_is_sorted_recursive_and_by_prefix(store: Store) -> None:
    assert store.list("") == []
    paths = ["a/chk-1/metadata", "a/chk-10/metadata", "a/chk-2/x", "a/epochs/1", "ab/chk-1/x"]
    for path in reversed(paths):
        store.put(path, b"")
    assert store.list("") == paths
    assert store.list("a/") == paths[:4]
    assert store.list("a/chk-") == paths[:3]
    assert store.list("a/chk-1") == paths[:2]
    assert store.list("a/chk-1/") == paths[:1]
    assert store.list("a/nothing/") == []


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/etc/passwd", "..", "../x", "a/../x", "a/./x", "a//x", "a/"),
        *(".headrace-tmp/x", "a/.hidden", "a\x00b", "x" * 256),
    ],
)
def test_a_path_that_is_not_relative_and_normalised_is_refused(store: Store, path: str) -> None:
    acts: list[Callable[[], object]] = [
        lambda: store.get(path),
        lambda: store.put(path, b"x"),
        lambda: store.create(path, b"x"),
        lambda: store.delete(path),
    ]
    for act in acts:
        with pytest.raises(StoreRejected, match="not a relative, normalised path"):
            act()


@pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", "/etc/"])
def test_a_prefix_that_leaves_the_root_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(StoreRejected, match="not a relative, normalised path"):
        store.list(prefix)


def test_a_store_pickles_as_its_url(store: Store) -> None:
    store.put(PATH, b"x")
    copy: Store = pickle.loads(pickle.dumps(store))
    assert copy.get(PATH) == b"x"


def test_opening_leaves_no_object_behind(store: Store) -> None:
    assert store.list("") == []


def test_opening_makes_a_missing_directory(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a/b")).put(PATH, b"x")
    assert (tmp_path / "a/b" / PATH).read_bytes() == b"x"


def test_a_directory_that_is_a_file_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError) as error:
        open_store(f"{tmp_path}/file")
    assert str(error.value) == (
        f"checkpoint directory {tmp_path}/file is not writable: "
        "a file stands where a folder is needed"
    )


def test_a_directory_without_permission_is_the_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(UserError, match="is not writable: permission denied"):
        open_store(f"{tmp_path}/new")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "the checkpoint directory is empty"),
        ("nope://x", "Protocol not known"),
    ],
)
def test_an_unusable_url_is_the_users_mistake(bad: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        open_store(bad)


def test_a_storage_that_streams_into_place_is_refused() -> None:
    class Streaming(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "streaming"

    fsspec.register_implementation("streaming", Streaming, clobber=True)
    with pytest.raises(UserError, match="cannot replace files atomically"):
        FsspecStore("streaming://x")


def test_a_storage_that_creates_over_what_exists_is_refused(shaky: type[Shaky]) -> None:
    with pytest.raises(UserError, match="does not create objects exclusively"):
        open_store("shaky://x")


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(StorageUnreachable, match=r"cannot be reached: .*refused"):
        open_store("ftp://127.0.0.1:1/x")


def test_wrong_credentials_are_one_sentence_without_them() -> None:
    class Guarded(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "guarded"
        cachable = False

        def __init__(self, *args: Any, **options: Any) -> None:
            raise RuntimeError("530 Login incorrect")

    fsspec.register_implementation("guarded", Guarded, clobber=True)
    uses: list[Callable[[str], object]] = [open_store, lambda url: locate(url, {})]
    for use in uses:
        with pytest.raises(StorageUnreachable, match="530 Login incorrect") as caught:
            use("guarded://ann:secret@host/dir")
        assert "secret" not in str(caught.value)
        assert "guarded://***@host/dir" in str(caught.value)


def test_a_storage_that_does_not_answer_is_unreachable(
    shaky: type[Shaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shaky, "failure", ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    with pytest.raises(StorageUnreachable, match=r"cannot be reached: .*refused"):
        open_store("shaky://x")


@pytest.mark.parametrize(
    ("failure", "kind", "reason"),
    [
        (TimeoutError(), StoreUncertain, "the storage did not answer in time"),
        (fsspec.exceptions.FSTimeoutError(), StoreUncertain, "did not answer in time"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), StoreUncertain, "reset"),
        (OSError("odd"), StoreUncertain, "odd"),
        (RuntimeError("client broke"), StoreUncertain, "RuntimeError: client broke"),
        (PermissionError(errno.EACCES, "denied"), StoreRejected, "permission denied"),
        (OSError(errno.ENOSPC, "full"), StoreRejected, "no space left on the device"),
    ],
)
def test_what_a_storage_client_raises_becomes_one_of_the_kinds(
    shaky: type[Shaky],
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    kind: type[StoreError],
    reason: str,
) -> None:
    monkeypatch.setattr(shaky, "failure", failure)
    store = FsspecStore("shaky://x")
    for act in (store.put, store.create):
        with pytest.raises(kind, match=reason):
            act(PATH, b"x")
