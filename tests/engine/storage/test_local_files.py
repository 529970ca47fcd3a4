"""Local checkpoint files under failing system calls, links, rivals and leftovers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.storage.local_files import (
    TEMPORARY_AGE_S_MAX,
    TEMPORARY_FOLDER,
    LocalFiles,
)
from headrace.recovery.store import (
    AlreadyExists,
    NotFound,
    StoreError,
    StoreRejected,
    StoreUncertain,
)

#: The system calls that writing, reading and deleting consist of.
CALLS = (
    *("open", "writev", "fsync", "close", "mkdir", "replace", "link", "unlink", "stat"),
    *("scandir", "fstat", "pread"),
)
PATH = "orders/chk-1/metadata"


class FailingCalls:
    """Makes the n-th of all calls in CALLS fail, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, code: int) -> None:
        self.count = 0
        self.at = at
        self.failed: str | None = None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name), code))

    def _wrapped(self, name: str, real: Callable[..., Any], code: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count != self.at:
                return real(*arguments, **options)
            self.failed = name
            if name == "close":
                # Linux closes the file even when it reports an error.
                real(*arguments, **options)
            if name == "writev":
                # A full disk takes a part of the data before it refuses.
                real(arguments[0], [bytes(arguments[1][0])[:2]])
            raise OSError(code, os.strerror(code))

        return call


def failing(code: int) -> Callable[..., object]:
    def call(*arguments: object, **options: object) -> object:
        raise OSError(code, os.strerror(code))

    return call


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def leftovers(root: Path) -> list[str]:
    folder = root / TEMPORARY_FOLDER
    return os.listdir(folder) if folder.exists() else []


def content(files: LocalFiles) -> bytes | None:
    try:
        return files.get(PATH, 0, None)
    except NotFound:
        return None


def fail_every_call(
    root: Path, code: int, prepare: Callable[[LocalFiles], None], act: Callable[[LocalFiles], None]
) -> list[tuple[str, StoreError | None, bytes | None, list[str]]]:
    """Run `act` with its first call failing, then its second, until it no longer has that many.

    Returns, for each, the call that failed, what was raised, the object afterwards and the
    temporary files.
    """
    outcomes: list[tuple[str, StoreError | None, bytes | None, list[str]]] = []
    for at in range(1, 200):
        folder = root / str(at)
        files = LocalFiles(str(folder))
        prepare(files)
        handles = open_files()
        error: StoreError | None = None
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = FailingCalls(monkeypatch, at, code)
            try:
                act(files)
            except StoreError as raised:
                error = raised
        assert open_files() == handles, f"{calls.failed} leaked a file descriptor"
        if calls.failed is None:
            assert error is None
            return outcomes
        outcomes.append((calls.failed, error, content(files), leftovers(folder)))
        act(files)
    raise AssertionError("the number of calls has no end")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_put_that_fails_at_any_call_leaves_the_old_object_or_the_new_one(
    tmp_path: Path, code: int
) -> None:
    outcomes = fail_every_call(
        tmp_path,
        code,
        lambda files: files.put(PATH, b"old object"),
        lambda files: files.put(PATH, b"new object"),
    )
    assert {"open", "writev", "fsync", "close", "replace"} <= {name for name, *_ in outcomes}
    for name, error, found, temporaries in outcomes:
        if error is None:
            # Looking whether a folder is there may fail, since making it finds out; so may tidying
            # up.
            assert name in ("stat", "unlink")
            assert found == b"new object"
        elif isinstance(error, StoreRejected):
            assert found == b"old object", name
        else:
            assert isinstance(error, StoreUncertain)
            assert found in (b"old object", b"new object"), name
        assert temporaries == [], name


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_first_put_that_fails_at_any_call_leaves_nothing_or_the_whole_object(
    tmp_path: Path, code: int
) -> None:
    outcomes = fail_every_call(
        tmp_path, code, lambda files: None, lambda files: files.put(PATH, b"new object")
    )
    assert "mkdir" in {name for name, *_ in outcomes}
    for name, error, found, temporaries in outcomes:
        if isinstance(error, StoreRejected):
            assert found is None, name
        else:
            assert found in (None, b"new object"), name
        assert temporaries == [], name


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_create_that_fails_at_any_call_leaves_nothing_or_the_whole_object(
    tmp_path: Path, code: int
) -> None:
    def create(files: LocalFiles) -> None:
        try:
            files.create(PATH, b"new object")
        except AlreadyExists:
            assert content(files) == b"new object"

    outcomes = fail_every_call(tmp_path, code, lambda files: None, create)
    assert "link" in {name for name, *_ in outcomes}
    for name, error, found, temporaries in outcomes:
        if isinstance(error, StoreRejected):
            assert found is None, name
        else:
            assert found in (None, b"new object"), name
        if name != "unlink":
            assert temporaries == [], name


def test_a_get_that_fails_at_any_call_never_returns_wrong_bytes(tmp_path: Path) -> None:
    def get(files: LocalFiles) -> None:
        assert files.get(PATH, 2, 5) == b"d obj"

    outcomes = fail_every_call(
        tmp_path, errno.EIO, lambda files: files.put(PATH, b"old object"), get
    )
    assert [name for name, *_ in outcomes] == ["open", "fstat", "pread", "close"]
    for _, error, found, _ in outcomes:
        assert isinstance(error, StoreRejected)
        assert found == b"old object"


def test_a_delete_that_fails_at_any_call_can_be_repeated(tmp_path: Path) -> None:
    outcomes = fail_every_call(
        tmp_path,
        errno.EIO,
        lambda files: files.put(PATH, b"old object"),
        lambda files: files.delete(PATH),
    )
    for _, error, found, _ in outcomes:
        assert error is not None
        assert found in (None, b"old object")


def test_a_list_that_fails_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    outcomes = fail_every_call(
        tmp_path,
        errno.EACCES,
        lambda files: files.put(PATH, b"old object"),
        lambda files: None if files.list("") == [PATH] else pytest.fail("incomplete"),
    )
    assert outcomes
    for _, error, _, _ in outcomes:
        assert isinstance(error, StoreRejected)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "no space left on the device"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "the file system is read-only"),
    ],
)
def test_a_refusal_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setattr(os, "mkdir", failing(code))
    with pytest.raises(StoreRejected) as error:
        LocalFiles(str(tmp_path)).put(PATH, b"x")
    assert str(error.value) == f"{PATH}: {reason}"


def test_an_unknown_error_leaves_the_outcome_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ETIMEDOUT))
    with pytest.raises(StoreUncertain):
        LocalFiles(str(tmp_path)).put(PATH, b"x")


def test_short_writes_and_reads_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev, pread = os.writev, os.pread

    def short(file: int, parts: list[memoryview]) -> int:
        return writev(file, [b"".join(parts)[:3]])

    monkeypatch.setattr(os, "writev", short)
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 4), at))
    files = LocalFiles(str(tmp_path))
    files.put(PATH, b"0123456789")
    assert files.get(PATH, 0, None) == b"0123456789"
    files.put(PATH, [b"01", b"", b"2345", b"6", b"789"])
    assert files.get(PATH, 0, None) == b"0123456789"


def test_an_object_may_have_more_parts_than_one_call_takes(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    parts = [bytes([n % 251]) * (n % 3) for n in range(5000)]
    files.put(PATH, parts)
    assert files.get(PATH, 0, None) == b"".join(parts)


def test_of_many_creators_exactly_one_wins(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    won: list[int] = []
    start = threading.Barrier(8)

    def compete(index: int) -> None:
        start.wait()
        try:
            files.create(PATH, b"%d" % index)
        except AlreadyExists:
            return
        won.append(index)

    threads = [threading.Thread(target=compete, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert files.get(PATH, 0, None) == b"%d" % won[0]


def test_a_link_whose_reply_was_lost_counts_as_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def linked_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", linked_twice)
    files = LocalFiles(str(tmp_path))
    files.create(PATH, b"mine")
    assert files.get(PATH, 0, None) == b"mine"


def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    failures: list[StoreError] = []

    def churn(name: str) -> None:
        try:
            for _ in range(50):
                files.put(f"orders/chk-1/{name}", b"x")
                files.delete(f"orders/chk-1/{name}")
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert files.list("") == []


def test_a_folder_that_another_makes_and_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, lost = os.mkdir, False

    def lost_once(folder: str, *arguments: Any) -> None:
        nonlocal lost
        if not lost and folder.endswith("chk-1"):
            lost = True
            raise FileExistsError(folder)
        make(folder, *arguments)

    files = LocalFiles(str(tmp_path))
    monkeypatch.setattr(os, "mkdir", lost_once)
    files.put(PATH, b"x")
    assert files.get(PATH, 0, None) == b"x"


def test_deleting_the_last_file_of_a_folder_removes_the_folder(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.put(PATH, b"x")
    files.delete(PATH)
    assert not (tmp_path / "orders/chk-1").exists()


@pytest.mark.parametrize("name", ["orders/chk-1", "orders"])
def test_a_folder_link_out_of_the_root_is_refused(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (outside / "chk-1").mkdir(parents=True)
    (outside / "metadata").write_bytes(b"secret")
    (outside / "chk-1/metadata").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(outside)
    files = LocalFiles(str(root))
    acts: list[Callable[[], object]] = [
        lambda: files.get(PATH, 0, None),
        lambda: files.put(PATH, b"x"),
        lambda: files.create(PATH, b"x"),
        lambda: files.delete(PATH),
    ]
    for act in acts:
        with pytest.raises(StoreRejected, match="symbolic link leads out"):
            act()
    assert files.list("") == []
    assert (outside / "metadata").read_bytes() == b"secret"


def test_an_object_that_is_a_link_is_neither_read_nor_listed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "metadata").symlink_to(tmp_path / "secret")
    files = LocalFiles(str(root))
    # As if nothing were there: an older checkpoint is used then.
    with pytest.raises(NotFound, match="it is a symbolic link"):
        files.get("metadata", 0, None)
    assert files.list("") == []
    files.put("metadata", b"mine")
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_root_that_is_a_link_itself_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files = LocalFiles(str(tmp_path / "link"))
    files.put(PATH, b"x")
    assert files.list("") == [PATH]


def test_folders_and_pipes_are_no_objects(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.put(PATH, b"x")
    os.mkfifo(tmp_path / "pipe")
    for path in ("orders/chk-1", "pipe", PATH + "/below"):
        with pytest.raises(NotFound):
            files.get(path, 0, None)
    assert files.list("") == [PATH]


def test_a_huge_length_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.put(PATH, b"x")
    with pytest.raises(StoreRejected, match="of a file of 1 bytes"):
        files.get(PATH, 0, 2**62)


def test_old_leftovers_are_swept_and_young_ones_stay(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.put(PATH, b"x")
    old, young = (tmp_path / TEMPORARY_FOLDER / name for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"unfinished")
    age_s = young.stat().st_mtime - TEMPORARY_AGE_S_MAX - 60
    os.utime(old, (age_s, age_s))
    assert files.list("") == [PATH]
    files.sweep()
    assert leftovers(tmp_path) == ["young"]
