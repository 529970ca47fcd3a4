"""Which job and checkpoint is meant, and what is said when none is."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.inspection.directory import open_checkpoint
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery.catalog import publish
from headrace.recovery.metadata import CheckpointMetadata


def complete(folder: Path, job: str, number: int, *, savepoint: bool = False) -> None:
    metadata = CheckpointMetadata(job, number, 1, "aligned", savepoint, 0, 0, 8, [], [], [], [])
    publish(FsspecStore(str(folder)), metadata)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    complete(tmp_path, "orders", 1)
    complete(tmp_path, "orders", 2)
    return tmp_path


def test_the_newest_is_meant_unless_a_number_is_given(folder: Path) -> None:
    assert open_checkpoint(str(folder)).metadata.checkpoint == 2
    assert open_checkpoint(str(folder), "orders", 1).metadata.checkpoint == 1


def test_the_path_of_a_savepoint_says_it_all(folder: Path) -> None:
    complete(folder, "orders", 3, savepoint=True)
    opened = open_checkpoint(f"{folder}/orders/sav-3")
    assert (opened.job, opened.metadata.checkpoint, opened.metadata.savepoint) == (
        "orders",
        3,
        True,
    )


def test_what_was_opened_travels(folder: Path) -> None:
    opened = open_checkpoint(str(folder))
    copied = pickle.loads(pickle.dumps(opened))
    assert (copied.store.url, copied.metadata) == (opened.store.url, opened.metadata)


def test_without_a_checkpoint_the_user_is_told_what_there_is(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"'orders' in .* has no complete checkpoint 9; it has 2, 1"
    ):
        open_checkpoint(str(folder), "orders", 9)
    with pytest.raises(UserError, match=r"no job 'payments' in .*: it holds orders"):
        open_checkpoint(str(folder), "payments")
    with pytest.raises(UserError, match="holds no checkpoints"):
        open_checkpoint(str(folder / "empty"))
    complete(folder, "payments", 1)
    with pytest.raises(UserError, match="several jobs; name one of orders, payments"):
        open_checkpoint(str(folder))


def test_a_damaged_newest_checkpoint_is_refused_and_not_passed_over(folder: Path) -> None:
    (folder / "orders/chk-2/metadata").write_bytes(b"no")
    with pytest.raises(UserError, match=r"chk-2 of job 'orders' cannot be read: .*offset 0"):
        open_checkpoint(str(folder))
