"""Databases in storage: stored once, named by whoever holds them, verified before use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.operators import (
    DatabaseFiles,
    DatabaseSnapshot,
    RestoredDatabase,
    StateLayout,
)
from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.storage.ahead import FilesAhead
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.databases import CorruptState, Origin, StoredFiles, read_databases
from headrace.engine.storage.snapshots import Written, restored_states, write_checkpoint
from headrace.engine.worker.subtask_events import Cut
from headrace.inflight.confirmed import Confirmed
from headrace.recovery.handles import DatabaseHandle, SharedFile
from headrace.recovery.layout import CheckpointKind
from headrace.recovery.metadata import SubtaskSnapshot
from headrace.recovery.store import Content, StoreRejected

ONE = SubtaskId(0, 0)
LAYOUT = StateLayout("totals", 1, pa.schema([("k", pa.int64()), ("v", pa.int64())]))


class CountingStore(FsspecStore):
    """Counts what is put, and refuses the n-th."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.puts: list[str] = []
        self.refuse_at = -1

    def put(self, path: str, data: Content) -> None:
        self.puts.append(path)
        if len(self.puts) == self.refuse_at:
            raise StoreRejected(path, "no space left on the device")
        super().put(path, data)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    yield CountingStore(str(tmp_path / "checkpoints"))


class Folder:
    """A database that has files and nothing else."""

    def __init__(self, path: Path, known: Mapping[str, SharedFile] | None = None) -> None:
        self.path = path
        path.mkdir()
        self.known = known or {}
        self.released = 0
        self.write("CURRENT", b"MANIFEST-1")

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)

    def snapshot(self) -> DatabaseSnapshot:
        def release() -> None:
            self.released += 1

        return DatabaseSnapshot(
            "totals/0",
            range(2, 6),
            [LAYOUT],
            self.known,
            lambda: DatabaseFiles(str(self.path), *rocks_files.files_of(str(self.path))),
            release,
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "db")


def checkpoint(
    store: CountingStore, number: int, folder: Folder, stored: StoredFiles, epoch: int = 1
) -> DatabaseHandle:
    cut = Cut(ONE, number, False, (), (), (), (), (), 0, 0)
    pieces = {ONE: [("totals", folder.snapshot())]}
    written: Written = write_checkpoint(
        store, "job", number, 0, epoch, pieces, [cut], Confirmed(), stored=stored
    )
    stored.stored(number, written.files)
    assert written.states == {ONE: []}
    (handle,) = written.databases[ONE]
    return handle


def shared(store: CountingStore) -> list[str]:
    found = [path for path in store.puts if "/shared/" in path]
    store.puts.clear()
    return [path.rpartition("/")[2].rpartition("-")[0] for path in found]


def test_what_a_complete_checkpoint_stored_is_not_stored_again(
    store: CountingStore, folder: Folder
) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    first = checkpoint(store, 5, folder, stored)
    assert shared(store) == ["5-w0-e1"]
    stored.confirmed(5)
    folder.write("2.sst", b"two")
    second = checkpoint(store, 6, folder, stored)
    assert shared(store) == ["6-w0-e1"]
    assert second.shared[0] == first.shared[0]
    assert [file.name for file in second.shared] == ["1.sst", "2.sst"]
    assert folder.released == 2


def test_what_an_unfinished_checkpoint_stored_serves_later_ones(
    store: CountingStore, folder: Folder
) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    checkpoint(store, 5, folder, stored)
    stored.given_up(5)
    checkpoint(store, 6, folder, stored)
    assert shared(store) == ["5-w0-e1"]
    stored.confirmed(6)
    checkpoint(store, 7, folder, stored)
    assert shared(store) == []


def test_files_of_an_older_checkpoint_than_the_newest_complete_one_are_not_built_upon(
    store: CountingStore, folder: Folder
) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    checkpoint(store, 5, folder, stored)
    (folder.path / "1.sst").rename(folder.path / "1.kept")
    checkpoint(store, 6, folder, stored)
    stored.confirmed(6)
    (folder.path / "1.kept").rename(folder.path / "1.sst")
    store.puts.clear()
    checkpoint(store, 7, folder, stored)
    assert shared(store) == ["7-w0-e1"]
    late = SharedFile("1.sst", "shared/5-w0-e1-00", 3, "00")
    stored.uploaded(5, "totals/0", late)
    assert late not in checkpoint(store, 8, folder, stored).shared


def test_a_checkpoint_waits_for_a_file_that_another_one_stores(
    store: CountingStore, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    under_way, go_on = threading.Event(), threading.Event()
    put = CountingStore.put

    def slow(self: CountingStore, path: str, data: Content) -> None:
        if "/shared/5-" in path:
            under_way.set()
            assert go_on.wait(30)
        put(self, path, data)

    monkeypatch.setattr(CountingStore, "put", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(checkpoint, store, 5, folder, stored)
        assert under_way.wait(30)
        second = pool.submit(checkpoint, store, 6, folder, stored)
        # It has stored nothing by the time the first goes on, or it would have stored the file.
        go_on.set()
        assert second.result(30).shared == first.result(30).shared
    assert shared(store) == ["5-w0-e1"]


def test_a_full_checkpoint_stores_all_again(store: CountingStore, folder: Folder) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    checkpoint(store, 5, folder, stored)
    cut = Cut(ONE, 6, False, (), (), (), (), (), 0, 0)
    pieces = {ONE: [("totals", folder.snapshot())]}
    write_checkpoint(store, "job", 6, 0, 1, pieces, [cut], Confirmed(), stored=stored, full=True)
    assert shared(store) == ["5-w0-e1", "6-w0-e1"]


def test_a_file_of_the_same_name_and_size_in_another_attempt_is_another_file(
    store: CountingStore, tmp_path: Path
) -> None:
    old, new = Folder(tmp_path / "old"), Folder(tmp_path / "new")
    old.write("9.sst", b"one")
    new.write("9.sst", b"two")
    first = checkpoint(store, 5, old, StoredFiles(), epoch=1)
    second = checkpoint(store, 5, new, StoredFiles(), epoch=2)
    assert first.shared[0].path != second.shared[0].path
    for handle, content in ((first, b"one"), (second, b"two")):
        assert fetched(store, handle, tmp_path / content.decode())["9.sst"] == content


def test_what_was_restored_is_built_upon_until_a_checkpoint_is_complete(
    store: CountingStore, folder: Folder, tmp_path: Path
) -> None:
    folder.write("1.sst", b"one")
    handle = checkpoint(store, 5, folder, StoredFiles())
    (restored,) = restore(store, handle)["totals"]
    again = Folder(tmp_path / "again", restored.known)
    again.write("1.sst", b"one")
    store.puts.clear()
    stored = StoredFiles()
    assert checkpoint(store, 6, again, stored, epoch=2).shared == handle.shared
    stored.confirmed(6)
    again.write("2.sst", b"two")
    checkpoint(store, 7, again, stored, epoch=2)
    assert shared(store) == ["7-w0-e2"]


def test_somebody_elses_files_are_not_built_upon(store: CountingStore, folder: Folder) -> None:
    folder.write("1.sst", b"one")
    handle = checkpoint(store, 5, folder, StoredFiles())
    (restored,) = restore(store, handle, ours=False)["totals"]
    assert restored.known == {}
    assert restored.size_bytes == 3


def test_a_savepoint_holds_all_and_nothing_is_built_upon_it(
    store: CountingStore, folder: Folder, tmp_path: Path
) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    checkpoint(store, 5, folder, stored)
    stored.confirmed(5)
    cut = Cut(ONE, 6, False, (), (), (), (), (), 0, 0)
    store.puts.clear()
    written = write_checkpoint(
        *(store, "job", 6, 0, 1, {ONE: [("totals", folder.snapshot())]}, [cut], Confirmed()),
        kind=CheckpointKind.SAVEPOINT,
        stored=stored,
    )
    assert store.puts
    assert all(path.startswith("job/sav-6/") for path in store.puts)
    (handle,) = written.databases[ONE]
    assert fetched(store, handle, tmp_path / "new")["1.sst"] == b"one"
    store.puts.clear()
    folder.write("2.sst", b"two")
    checkpoint(store, 7, folder, stored)
    assert shared(store) == ["7-w0-e1"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_storage_that_refuses_fails_the_checkpoint_and_the_next_one_stores_the_rest(
    store: CountingStore, folder: Folder, at: int
) -> None:
    stored = StoredFiles()
    folder.write("1.sst", b"one")
    folder.write("2.sst", b"two")
    store.refuse_at = at
    with pytest.raises(StoreRejected, match="no space"):
        checkpoint(store, 5, folder, stored)
    assert folder.released == 1
    store.refuse_at = -1
    store.puts.clear()
    stored.confirmed(4)
    checkpoint(store, 6, folder, stored)
    assert shared(store) == (3 - at) * ["6-w0-e1"]


def restore(
    store: CountingStore, handle: DatabaseHandle, *, ours: bool = True
) -> dict[str, list[RestoredDatabase]]:
    return read_databases(Origin(store, "job", ours=ours), [handle], range(8), 8)


def fetched(store: CountingStore, handle: DatabaseHandle, target: Path) -> dict[str, bytes]:
    (restored,) = restore(store, handle)["totals"]
    target.mkdir()
    restored.fetch(str(target))
    return {path.name: path.read_bytes() for path in target.iterdir()}


def test_all_files_come_back_under_their_names(
    store: CountingStore, folder: Folder, tmp_path: Path
) -> None:
    folder.write("1.sst", b"one")
    folder.write("LOCK", b"")
    folder.write("3.log", b"")
    handle = checkpoint(store, 5, folder, StoredFiles())
    assert (handle.first_group, handle.end_group) == (2, 6)
    assert fetched(store, handle, tmp_path / "new") == {"1.sst": b"one", "CURRENT": b"MANIFEST-1"}
    snapshot = SubtaskSnapshot(0, 0, False, [], [], [], databases=[handle])
    origin = Origin(store, "job", ours=True)
    states = restored_states(origin, snapshot, max_parallelism=8, parallelism=1)
    (restored,) = states["totals"]
    assert isinstance(restored, RestoredDatabase)
    assert restored.layouts == [LAYOUT]


def test_what_was_fetched_ahead_is_not_read_again_unless_it_has_changed(
    folder: Folder, tmp_path: Path
) -> None:
    local = CountingStore(str(tmp_path / "checkpoints"))
    folder.write("1.sst", b"one")
    handle = checkpoint(local, 5, folder, StoredFiles())
    place = tmp_path / "checkpoints" / "job" / handle.shared[0].path

    def fetch(name: str) -> bytes:
        ahead = FilesAhead(local, "job", lambda: str(tmp_path / f"ahead-{name}"))
        assert ahead.fetch(handle.shared) == 3
        if name == "changed":
            place.write_bytes(b"eno")
        else:
            place.unlink()
        origin = Origin(local, "job", ours=True)
        (restored,) = read_databases(origin, [handle], range(8), 8, ahead=ahead)["totals"]
        (tmp_path / name).mkdir()
        restored.fetch(str(tmp_path / name))
        return (tmp_path / name / "1.sst").read_bytes()

    with pytest.raises(CorruptState, match="xxh3"):
        fetch("changed")
    place.write_bytes(b"one")
    assert fetch("gone") == b"one"


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        *(("shared", damage) for damage in ("flip", "cut", "grow", "remove")),
        *(("segment", damage) for damage in ("flip", "cut", "remove")),
    ],
)
def test_damage_is_found_before_anything_is_used(
    store: CountingStore, folder: Folder, tmp_path: Path, which: str, damage: str
) -> None:
    folder.write("1.sst", b"one")
    handle = checkpoint(store, 5, folder, StoredFiles())
    path, at = (
        (handle.shared[0].path, 0)
        if which == "shared"
        else (handle.own[0].path, handle.own[0].offset)
    )
    file = tmp_path / "checkpoints" / "job" / path
    data = bytearray(file.read_bytes())
    file.unlink()
    if damage == "flip":
        data[at] ^= 1
    elif damage == "cut":
        data = data[: at + 2]
    elif damage == "grow":
        data += b"!"
    if damage != "remove":
        file.write_bytes(data)
    with pytest.raises(CorruptState, match=f"job/{path}"):
        fetched(store, handle, tmp_path / "new")
