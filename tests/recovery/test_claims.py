"""Claims: one job has a checkpoint, and what goes with its release is what nobody else names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.claims import (
    AlreadyClaimed,
    Claimer,
    NotReleased,
    acquire,
    check_unclaimed,
    claimed_checkpoints,
    release,
)
from headrace.recovery.handles import StateHandle
from headrace.recovery.layout import CheckpointKind, claimed_path, metadata_path
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TaskInfo
from headrace.recovery.store import StoreRejected

CHK, SAV = CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT
ME = Claimer(directory="/new", job="newer")
RIVAL = Claimer(directory="/other", job="newer")


def metadata(number: int, files: Sequence[str], *, savepoint: bool = False) -> CheckpointMetadata:
    """A checkpoint that names these files."""
    states = [
        StateHandle("sum", f"state{n}", "list", path, 64, 10, "a" * 16, 1)
        for n, path in enumerate(files)
    ]
    return CheckpointMetadata(
        job="old",
        checkpoint=number,
        epoch=1,
        mode="unaligned",
        savepoint=savepoint,
        created_ms=0,
        duration_ns=0,
        max_parallelism=128,
        tasks=[TaskInfo("sum", ["sum"], ["sum"], 1)],
        edges=[],
        subtasks=[SubtaskSnapshot(0, 0, False, states, [], [])],
        transactions=[],
    )


class Folder:
    """The folder of job `old` in a directory."""

    def __init__(self, root: Path) -> None:
        self.store = FsspecStore(str(root))

    def complete(self, number: int, *files: str, savepoint: bool = False) -> None:
        for path in files:
            self.store.put(f"old/{path}", b"data")
        catalog.publish(self.store, metadata(number, files, savepoint=savepoint))

    def files(self) -> list[str]:
        return [path.removeprefix("old/") for path in self.store.list("old/")]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_checkpoint_is_claimed_once_and_the_claim_may_be_repeated(folder: Folder) -> None:
    folder.complete(5)
    acquire(folder.store, "old", 5, CHK, ME)
    acquire(folder.store, "old", 5, CHK, ME)
    with pytest.raises(
        AlreadyClaimed, match="job 'newer' with its checkpoints in /new has claimed"
    ):
        acquire(folder.store, "old", 5, CHK, RIVAL)
    assert claimed_checkpoints(folder.store, "old") == {5}
    check_unclaimed(folder.store, "old", 5, CHK, ME)
    check_unclaimed(folder.store, "old", 4, CHK, RIVAL)
    with pytest.raises(AlreadyClaimed):
        check_unclaimed(folder.store, "old", 5, CHK, RIVAL)


def test_a_claim_that_nobody_can_read_is_nobodys(folder: Folder) -> None:
    folder.complete(5)
    folder.store.put(claimed_path("old", 5, CHK), b'{"direc')
    check_unclaimed(folder.store, "old", 5, CHK, RIVAL)
    acquire(folder.store, "old", 5, CHK, ME)
    with pytest.raises(AlreadyClaimed):
        check_unclaimed(folder.store, "old", 5, CHK, RIVAL)


def test_what_is_released_goes_with_all_that_it_alone_names(folder: Folder) -> None:
    folder.complete(
        5, "chk-5/worker-0-e1.segment", "chk-2/worker-0-e1.segment", "shared/3-w0-e1-" + "a" * 16
    )
    folder.store.put("old/chk-5/worker-1-e1-log-0.segment", b"written for it, and named by nobody")
    folder.store.put("old/epochs/1", b"old\n")
    acquire(folder.store, "old", 5, CHK, ME)
    release(folder.store, "old", 5, CHK, ME)
    assert folder.files() == ["epochs/1"]
    release(folder.store, "old", 5, CHK, ME)


def test_files_that_others_there_name_stay_and_the_others_are_whole(folder: Folder) -> None:
    shared, segment = "shared/3-w0-e1-" + "a" * 16, "chk-5/worker-0-e1.segment"
    folder.complete(5, shared, segment, "chk-2/worker-0-e1.segment")
    folder.complete(6, shared, segment)
    folder.complete(7, "sav-7/worker-0-e1.segment", savepoint=True)
    acquire(folder.store, "old", 5, CHK, ME)
    release(folder.store, "old", 5, CHK, ME)
    assert folder.files() == sorted(
        ["chk-6/metadata", segment, "sav-7/metadata", "sav-7/worker-0-e1.segment", shared]
    )


def test_a_savepoint_goes_whatever_else_lies_there(folder: Folder) -> None:
    folder.complete(7, "sav-7/worker-0-e1.segment", savepoint=True)
    folder.store.put(metadata_path("old", 3), b"rubbish")
    acquire(folder.store, "old", 7, SAV, ME)
    assert claimed_checkpoints(folder.store, "old") == set()
    release(folder.store, "old", 7, SAV, ME)
    assert folder.files() == ["chk-3/metadata"]


def test_nothing_is_touched_when_what_others_name_is_not_known(folder: Folder) -> None:
    folder.complete(5, "chk-5/worker-0-e1.segment")
    folder.store.put(metadata_path("old", 6), b"rubbish")
    acquire(folder.store, "old", 5, CHK, ME)
    before = folder.files()
    with pytest.raises(NotReleased, match="what another checkpoint there names is not known"):
        release(folder.store, "old", 5, CHK, ME)
    assert folder.files() == before


def test_who_has_lost_the_claim_deletes_nothing(folder: Folder) -> None:
    folder.complete(5, "chk-5/worker-0-e1.segment")
    release(folder.store, "old", 5, CHK, ME)
    acquire(folder.store, "old", 5, CHK, RIVAL)
    with pytest.raises(AlreadyClaimed):
        release(folder.store, "old", 5, CHK, ME)
    assert "chk-5/metadata" in folder.files()


class Dying(FsspecStore):
    """A store that does so many more changes."""

    def __init__(self, root: str, changes: int) -> None:
        super().__init__(root)
        self.changes = changes

    def _change(self, path: str) -> None:
        self.changes -= 1
        if self.changes < 0:
            raise StoreRejected(path, "the driver is dead")

    def put(self, path: str, data: object) -> None:
        self._change(path)
        super().put(path, data)  # type: ignore[arg-type]  # handed through

    def delete(self, path: str) -> None:
        self._change(path)
        super().delete(path)


@pytest.mark.parametrize("changes", range(8))
def test_a_release_that_is_cut_off_anywhere_is_finished_by_the_next(
    folder: Folder, tmp_path: Path, changes: int
) -> None:
    shared = "shared/3-w0-e1-" + "a" * 16
    folder.complete(5, shared, "chk-5/worker-0-e1.segment", "chk-2/worker-0-e1.segment")
    folder.complete(6, shared)
    acquire(folder.store, "old", 5, CHK, ME)
    dying = Dying(str(tmp_path), changes)
    try:
        release(dying, "old", 5, CHK, ME)
    except StoreRejected:
        left = folder.files()
        if "chk-5/metadata" in left:
            assert {"chk-5/worker-0-e1.segment", "chk-2/worker-0-e1.segment"} <= set(left)
        assert "chk-5/claimed" in left, "somebody must know"
    release(folder.store, "old", 5, CHK, ME)
    assert folder.files() == ["chk-6/metadata", shared]


def test_a_checkpoint_that_was_subsumed_while_it_was_asked_is_followed_by_its_successor(
    folder: Folder, tmp_path: Path
) -> None:
    shared = "shared/3-w0-e1-" + "a" * 16
    folder.complete(5, shared)
    folder.complete(6, shared)
    acquire(folder.store, "old", 5, CHK, ME)

    class Moving(FsspecStore):
        """The other job goes on from 6 as soon as it has been listed."""

        def get(
            self,
            path: str,
            offset: int = 0,
            length: int | None = None,
            bytes_max: int | None = None,
        ) -> bytes:
            if path == metadata_path("old", 6):
                folder.complete(8, shared)
                super().delete(path)
            return super().get(path, offset, length, bytes_max)

    release(Moving(str(tmp_path)), "old", 5, CHK, ME)
    assert folder.files() == ["chk-8/metadata", shared]
