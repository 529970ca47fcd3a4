"""Databases of a checkpoint, whose large files may be another one's: verified whole, and deleted
when nobody names them.
"""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from headrace.engine.simulation.memory_store import MemoryStore
from headrace.inflight.segment import SegmentBuilder, table_to_ipc
from headrace.recovery.catalog import (
    NoValidCheckpoint,
    delete_written,
    newest_valid,
    publish,
    read_shared,
    verify,
)
from headrace.recovery.layout import handle_path, metadata_path, segment_path, shared_path
from headrace.recovery.metadata import (
    CheckpointMetadata,
    DatabaseHandle,
    FileHandle,
    SharedFile,
    StateSchema,
)
from headrace.recovery.store import StoreRejected

from .test_catalog import TABLE, written

SHARED = shared_path("orders", 1, 0, 1, xxhash.xxh3_64_hexdigest(b"keys and values"))


def with_database(store: MemoryStore, number: int) -> CheckpointMetadata:
    """Let checkpoint `number` also hold a database, whose large file was written for checkpoint
    1.
    """
    metadata = written(store, number)
    path = segment_path("orders", number, 9, 1)
    builder = SegmentBuilder()
    schema = builder.append(*table_to_ipc(TABLE.slice(0, 0)))
    current = builder.append(b"MANIFEST-1")
    store.put(path, b"".join(builder.parts()))
    store.put(SHARED, b"keys and values")
    shown = handle_path("orders", path)
    database = DatabaseHandle(
        *("sum", "rocksdb", 0, 128),
        schemas=[StateSchema("totals", 1, shown, schema.offset, schema.length, schema.checksum)],
        shared=[SharedFile("1.sst", handle_path("orders", SHARED), 15, SHARED[-16:])],
        own=[FileHandle("CURRENT", shown, current.offset, current.length, current.checksum)],
    )
    subtask = msgspec.structs.replace(metadata.subtasks[0], databases=[database])
    metadata = msgspec.structs.replace(metadata, subtasks=[subtask])
    del store.objects[metadata_path("orders", number)]
    publish(store, metadata)
    return metadata


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_every_flipped_bit_of_a_database_is_found(store: MemoryStore) -> None:
    with_database(store, 2)
    assert verify(store, "orders", 2) == []
    for path in (SHARED, segment_path("orders", 2, 9, 1)):
        data = store.objects[path]
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            store.objects[path] = bytes(flipped)
            assert len(verify(store, "orders", 2)) == 1, f"bit {bit} of {path}"
        store.objects[path] = data


@pytest.mark.parametrize("tail", [None, b"", b"keys and valu", b"keys and values, and more"])
def test_a_shared_file_of_another_length_is_found(store: MemoryStore, tail: bytes | None) -> None:
    with_database(store, 2)
    if tail is None:
        del store.objects[SHARED]
    else:
        store.objects[SHARED] = tail
    (problem,) = verify(store, "orders", 2)
    assert SHARED in problem
    if tail is None or len(tail) < 15:
        with pytest.raises(NoValidCheckpoint):
            newest_valid(store, "orders")


def test_shared_files_go_with_the_checkpoint_they_were_written_for_unless_they_are_kept(
    store: MemoryStore,
) -> None:
    with_database(store, 1)
    other = shared_path("orders", 11, 0, 1, "0" * 16)
    store.put(other, b"x")
    delete_written(store, "orders", 1, keep={handle_path("orders", SHARED)})
    assert store.list("orders/shared/") == sorted([SHARED, other])
    delete_written(store, "orders", 1)
    assert store.list("orders/") == [other]


def test_storage_that_refuses_to_read_a_shared_file_says_nothing_about_the_file(
    store: MemoryStore,
) -> None:
    file = with_database(store, 2).subtasks[0].databases[0].shared[0]
    refusals = iter([True])

    def refuse_once(operation: str, path: str) -> None:
        if next(refusals, False):
            raise StoreRejected(path, "input/output error")

    store.before = refuse_once
    with pytest.raises(StoreRejected):
        read_shared(store, "orders", file)
    assert read_shared(store, "orders", file) == b"keys and values"
