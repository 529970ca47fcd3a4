"""Paths: one place for each file, and no way out of the job's folder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.recovery.layout import (
    CheckpointKind,
    CheckpointPath,
    InvalidPath,
    SharedName,
    checkpoint_folder,
    epoch_path,
    handle_path,
    is_plain_path,
    job_folder,
    metadata_path,
    owner,
    parse_checkpoint_path,
    parse_epoch_path,
    parse_shared_path,
    segment_path,
    shared_folder,
    shared_path,
    shared_prefix,
    store_path,
)


def test_paths_are_where_the_documentation_says() -> None:
    assert metadata_path("orders", 7) == "orders/chk-7/metadata"
    assert metadata_path("orders", 7, CheckpointKind.SAVEPOINT) == "orders/sav-7/metadata"
    assert segment_path("orders", 7, 2, 5) == "orders/chk-7/worker-2-e5.segment"
    assert epoch_path("orders", 5) == "orders/epochs/5"
    assert shared_folder("orders") == "orders/shared/"
    assert checkpoint_folder("orders", 0) == "orders/chk-0/"
    assert shared_path("orders", 7, 2, 5, "0" * 16) == "orders/shared/7-w2-e5-" + "0" * 16


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_parsing_a_made_path_gives_its_parts(number: int, worker: int, epoch: int) -> None:
    parsed = parse_checkpoint_path(segment_path("orders", number, worker, epoch))
    assert parsed is not None
    assert parsed[:3] == ("orders", CheckpointKind.CHECKPOINT, number)
    assert parsed.name == f"worker-{worker}-e{epoch}.segment"
    assert parse_epoch_path(epoch_path("orders", epoch)) == epoch


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_a_shared_file_says_for_which_checkpoint_it_was_written(
    number: int, worker: int, epoch: int
) -> None:
    path = shared_path("orders", number, worker, epoch, "a1" * 8)
    assert path.startswith(shared_prefix("orders", number))
    name = parse_shared_path(handle_path("orders", path))
    assert name == SharedName(number, worker, epoch, "a1" * 8)


@pytest.mark.parametrize(
    "path",
    [
        "shared/sst",
        "shared/7-w2-e5-xyz",
        "shared/7-w2-e5",
        "chk-7/7-w2-e5-" + "0" * 16,
        "7-w2-e5-" + "0" * 16,
    ],
)
def test_other_paths_are_no_shared_files(path: str) -> None:
    assert parse_shared_path(path) is None


def test_a_file_tells_for_which_checkpoint_it_was_written() -> None:
    made = [segment_path("orders", 7, 2, 5), shared_path("orders", 8, 2, 5, "0" * 16)]
    assert [owner(handle_path("orders", path)) for path in made] == [7, 8]
    assert owner("sav-7/worker-0-e1.segment") is None


def test_a_savepoint_path_is_told_from_a_checkpoint_path() -> None:
    assert parse_checkpoint_path("orders/sav-3/metadata") == CheckpointPath(
        "orders", CheckpointKind.SAVEPOINT, 3, "metadata"
    )


@pytest.mark.parametrize(
    "path",
    [
        "orders",
        "orders/chk-7",
        "orders/chk-7/",
        "orders/chk-07/metadata",
        "orders/chk--7/metadata",
        "orders/chk-/metadata",
        "orders/chk-\u0667/metadata",
        "orders/chk-1234567890123456789/metadata",
        "orders/tmp-7/metadata",
        "/chk-7/metadata",
        ".hidden/chk-7/metadata",
    ],
)
def test_other_paths_are_no_checkpoint_paths(path: str) -> None:
    assert parse_checkpoint_path(path) is None


@pytest.mark.parametrize(
    "path", ["orders/epochs/05", "orders/epochs/", "orders/epochs/5/x", "orders/epoch/5", "5"]
)
def test_other_paths_are_no_epochs(path: str) -> None:
    assert parse_epoch_path(path) is None


@pytest.mark.parametrize("name", ["orders", "Orders-2.v1_x", "7"])
def test_a_plain_job_name_is_its_folder(name: str) -> None:
    assert job_folder(name) == name


@given(st.text(min_size=1, max_size=200))
def test_every_job_name_has_a_plain_folder_that_is_its_own_folder(name: str) -> None:
    folder = job_folder(name)
    assert is_plain_path(folder)
    assert "/" not in folder
    assert job_folder(folder) == folder


def test_different_job_names_have_different_folders() -> None:
    names = ["a b", "a_b", "a-b", "a/b", "a  b", "../a", "..", ".", "ä", "ö", "a" * 101, "a" * 102]
    assert len({job_folder(name) for name in names}) == len(names)


def test_an_empty_job_name_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        job_folder("")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../other/chk-1/x",
        "chk-1/../../x",
        "chk-1/./x",
        "chk-1//x",
        "chk-1/",
        ".hidden",
        "chk-1/.hidden",
        "C:\\x",
        "chk-1\\x",
        "chk-1/x\n",
        "chk-1/x\x00",
        "s3://bucket/x",
        "chk-1/ä",
        "x" * 1025,
    ],
)
def test_a_handle_cannot_leave_the_job_folder(path: str) -> None:
    assert not is_plain_path(path)
    with pytest.raises(InvalidPath):
        store_path("orders", path)


def test_a_handle_path_resolves_to_the_path_it_was_made_from() -> None:
    path = segment_path("my job", 3, 1, 2)
    assert handle_path("my job", path) == "chk-3/worker-1-e2.segment"
    assert store_path("my job", handle_path("my job", path)) == path


def test_a_path_of_another_job_makes_no_handle() -> None:
    with pytest.raises(InvalidPath, match="payments"):
        handle_path("orders", "payments/chk-1/x")
