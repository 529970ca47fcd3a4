"""Places that are taken by what lies elsewhere: records outlive drivers, and a damaged one says
so.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.layout import CheckpointKind, link_path
from headrace.recovery.links import CheckpointLink, Damaged, delete, numbers, read_all, write
from headrace.recovery.store import AlreadyExists

CLAIM = CheckpointLink(
    number=4, directory="/old", job="older", checkpoint=9, savepoint=False, claimed=True
)
SAVEPOINT = CheckpointLink(
    number=7, directory="", job="job", checkpoint=7, savepoint=True, claimed=False
)


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path))


def test_what_is_noted_is_read_again_lowest_place_first(store: FsspecStore) -> None:
    for record in (SAVEPOINT, CLAIM, CLAIM):
        write(store, "job", record)
    assert read_all(store, "job") == ([CLAIM, SAVEPOINT], [])
    assert (CLAIM.kind, SAVEPOINT.kind) == (CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT)
    assert str(CLAIM) == "chk-9 of job 'older' in /old"
    assert str(SAVEPOINT) == "sav-7 of job 'job'"


def test_a_place_is_taken_once(store: FsspecStore) -> None:
    write(store, "job", CLAIM)
    with pytest.raises(AlreadyExists):
        write(store, "job", msgspec.structs.replace(CLAIM, checkpoint=10))
    assert read_all(store, "job") == ([CLAIM], [])


def test_no_checkpoint_gets_a_number_whose_place_is_taken(store: FsspecStore) -> None:
    write(store, "job", SAVEPOINT)
    assert catalog.next_checkpoint_number(store, "job") == 8


def test_a_record_that_is_forgotten_is_gone_and_may_be_forgotten_twice(store: FsspecStore) -> None:
    write(store, "job", CLAIM)
    delete(store, "job", 4)
    delete(store, "job", 4)
    assert numbers(store, "job") == []


def test_every_flipped_bit_of_a_record_is_told(store: FsspecStore) -> None:
    write(store, "job", CLAIM)
    path = link_path("job", 4)
    whole = store.get(path)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        store.put(path, bytes(data))
        records, damaged = read_all(store, "job")
        assert (records, [each.number for each in damaged]) == ([], [4]), f"bit {bit}"


def test_a_record_of_an_early_version_has_no_checksum(store: FsspecStore) -> None:
    store.put(link_path("job", 4), msgspec.json.encode(CLAIM) + b"\n")
    assert read_all(store, "job") == ([CLAIM], [])


@pytest.mark.parametrize(
    "data",
    [
        b'{"number":4,"direc',
        b"\xff\xfe",
        b"{}",
        msgspec.json.encode(msgspec.structs.replace(CLAIM, number=5)),
        msgspec.json.encode(msgspec.structs.replace(CLAIM, checkpoint=-1)),
        b" " * 70_000,
    ],
)
def test_a_damaged_record_is_told_apart(store: FsspecStore, data: bytes) -> None:
    store.put(link_path("job", 4), data)
    write(store, "job", SAVEPOINT)
    records, damaged = read_all(store, "job")
    assert records == [SAVEPOINT]
    assert [type(each) for each in damaged] == [Damaged]
    assert damaged[0].number == 4
    assert damaged[0].reason
