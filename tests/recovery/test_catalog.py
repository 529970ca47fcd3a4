"""Finding, refusing, publishing, deleting checkpoints; claiming epochs.

Over a store in a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
import xxhash

from headrace.engine.simulation.memory_store import MemoryStore
from headrace.inflight.segment import SegmentBuilder, table_to_ipc
from headrace.recovery.catalog import (
    CLAIM_ATTEMPTS_MAX,
    ClaimFailed,
    EpochTaken,
    NoValidCheckpoint,
    WrongJob,
    claim_epoch,
    complete_checkpoints,
    delete_partial_savepoint,
    delete_written,
    incomplete_checkpoints,
    jobs,
    load,
    newest_epoch,
    newest_valid,
    next_checkpoint_number,
    publish,
    verify,
    withdraw,
)
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.handles import StateHandle
from headrace.recovery.layout import (
    CheckpointKind,
    epoch_path,
    handle_path,
    metadata_path,
    segment_path,
)
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TaskInfo
from headrace.recovery.store import (
    AlreadyExists,
    NotFound,
    StoreError,
    StoreRejected,
    StoreUncertain,
)

TABLE = pa.table({"customer": ["anna", "zoë"], "amount": [3, 4]})


def written(
    store: MemoryStore, number: int, job: str = "orders", *, savepoint: bool = False
) -> CheckpointMetadata:
    """Put a whole checkpoint with one segment into the store."""
    kind = CheckpointKind.SAVEPOINT if savepoint else CheckpointKind.CHECKPOINT
    builder = SegmentBuilder()
    blob = builder.append(*table_to_ipc(TABLE))
    path = segment_path(job, number, 0, 1, kind)
    store.put(path, b"".join(builder.parts()))
    handle = StateHandle(
        "sum", "totals", "list", handle_path(job, path), blob.offset, blob.length, blob.checksum, 2
    )
    metadata = CheckpointMetadata(
        job=job,
        checkpoint=number,
        epoch=1,
        mode="aligned",
        savepoint=savepoint,
        created_ms=0,
        duration_ns=0,
        max_parallelism=128,
        tasks=[TaskInfo("sum", ["sum"], ["sum"], 1)],
        edges=[],
        subtasks=[SubtaskSnapshot(0, 0, False, [handle], [], [])],
        transactions=[],
    )
    publish(store, metadata)
    return metadata


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def deleted(store: MemoryStore) -> list[str]:
    return [path for method, path in store.calls if method == "delete"]


def damage(store: MemoryStore, path: str) -> None:
    store.objects[path] = store.objects[path][:-1] + b"\0"


def test_an_empty_store_has_nothing_to_restore(store: MemoryStore) -> None:
    assert newest_valid(store, "orders") == (None, [])
    assert complete_checkpoints(store, "orders") == []
    assert next_checkpoint_number(store, "orders") == 1
    assert jobs(store) == []


def test_checkpoints_are_listed_newest_first_by_number(store: MemoryStore) -> None:
    for number in (2, 10, 9):
        written(store, number)
    assert complete_checkpoints(store, "orders") == [10, 9, 2]
    assert newest_valid(store, "orders") == (load(store, "orders", 10), [])


def test_a_checkpoint_without_metadata_is_incomplete_but_its_number_is_taken(
    store: MemoryStore,
) -> None:
    written(store, 1)
    store.put(segment_path("orders", 4, 0, 1), b"x")
    assert complete_checkpoints(store, "orders") == [1]
    assert incomplete_checkpoints(store, "orders") == [4]
    assert next_checkpoint_number(store, "orders") == 5


def test_savepoints_share_the_numbers_and_are_the_newest_where_there_is_no_checkpoint(
    store: MemoryStore,
) -> None:
    checkpoint = written(store, 1)
    savepoint = written(store, 2, savepoint=True)
    assert complete_checkpoints(store, "orders") == [2, 1]
    assert complete_checkpoints(store, "orders", savepoints=False) == [1]
    assert newest_valid(store, "orders") == (checkpoint, [])
    assert load(store, "orders", 2) == savepoint
    assert verify(store, "orders", 2) == []
    assert next_checkpoint_number(store, "orders") == 3
    withdraw(store, "orders", 1)
    delete_written(store, "orders", 1)
    assert newest_valid(store, "orders") == (savepoint, [])


def test_what_is_left_of_a_savepoint_that_was_given_up_is_deleted_and_a_complete_one_is_not(
    store: MemoryStore,
) -> None:
    written(store, 1, savepoint=True)
    written(store, 2, savepoint=True)
    del store.objects[metadata_path("orders", 2, CheckpointKind.SAVEPOINT)]
    for number in (1, 2):
        delete_partial_savepoint(store, "orders", number)
    assert {path.split("/")[1] for path in store.objects} == {"sav-1"}
    assert verify(store, "orders", 1) == []


def test_jobs_share_a_directory_without_seeing_each_other(store: MemoryStore) -> None:
    written(store, 1, "orders")
    written(store, 2, "orders-2")
    assert jobs(store) == ["orders", "orders-2"]
    assert complete_checkpoints(store, "orders") == [1]
    assert complete_checkpoints(store, "orders-2") == [2]


def test_a_folder_with_another_jobs_checkpoints_is_an_error(store: MemoryStore) -> None:
    written(store, 1, "payments")
    store.objects = {
        path.replace("payments", "orders"): data for path, data in store.objects.items()
    }
    with pytest.raises(WrongJob, match="belongs to job 'payments', not to 'orders'"):
        newest_valid(store, "orders")


def test_damaged_metadata_is_refused_with_its_reason_and_the_one_before_is_used(
    store: MemoryStore,
) -> None:
    older, _ = written(store, 1), written(store, 2)
    damage(store, metadata_path("orders", 2))
    metadata, rejected = newest_valid(store, "orders")
    assert metadata == older
    assert [number for number, _ in rejected] == [2]
    assert "orders/chk-2/metadata: offset 0: expected" in rejected[0][1]


def test_metadata_copied_from_another_number_is_refused(store: MemoryStore) -> None:
    older = written(store, 1)
    store.objects[metadata_path("orders", 2)] = store.objects[metadata_path("orders", 1)]
    metadata, rejected = newest_valid(store, "orders")
    assert metadata == older
    assert rejected[0][1].endswith("expected checkpoint 2, found checkpoint 1")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: None, "not found"),
        (lambda data: data[:-1], "are there"),
        (lambda data: b"", "are there"),
        (lambda data: bytes(len(data)), "segment header"),
    ],
)
def test_a_checkpoint_with_a_missing_or_short_file_is_refused(
    store: MemoryStore, spoil: Callable[[bytes], bytes | None], reason: str
) -> None:
    older, _ = written(store, 1), written(store, 2)
    path = segment_path("orders", 2, 0, 1)
    spoiled = spoil(store.objects.pop(path))
    if spoiled is not None:
        store.objects[path] = spoiled
    metadata, rejected = newest_valid(store, "orders")
    assert metadata == older
    assert path in rejected[0][1]
    assert reason in rejected[0][1]


def test_a_job_whose_checkpoints_are_all_damaged_does_not_start_afresh(store: MemoryStore) -> None:
    for number in (1, 2):
        written(store, number)
        damage(store, metadata_path("orders", number))
    with pytest.raises(NoValidCheckpoint) as error:
        newest_valid(store, "orders")
    assert [number for number, _ in error.value.rejected] == [2, 1]


@pytest.mark.parametrize("kind", [StoreUncertain, StoreRejected])
@pytest.mark.parametrize("file", [metadata_path("orders", 2), segment_path("orders", 2, 0, 1)])
def test_storage_that_fails_is_not_taken_for_damage(
    store: MemoryStore, kind: type[StoreError], file: str
) -> None:
    written(store, 1)
    written(store, 2)
    assert file in store.objects
    failures = [kind(file, "no answer")]

    def fail(operation: str, path: str) -> None:
        if operation == "get" and path == file and failures:
            raise failures.pop()

    store.before = fail
    with pytest.raises(kind):
        newest_valid(store, "orders")


def test_a_newer_format_is_not_taken_for_damage(store: MemoryStore) -> None:
    written(store, 1)
    body = b"{}"
    checksum = xxhash.xxh3_64_hexdigest(b"headrace-checkpoint 9 2\n" + body)
    header = f"headrace-checkpoint 9 xxh3:{checksum} 2\n".encode()
    store.put(metadata_path("orders", 2), header + body)
    with pytest.raises(UnsupportedVersion):
        newest_valid(store, "orders")


def test_a_checkpoint_that_is_subsumed_while_listed_is_passed_over(store: MemoryStore) -> None:
    older, _ = written(store, 1), written(store, 2)

    def subsume(operation: str, path: str) -> None:
        if operation == "get":
            store.objects.pop(metadata_path("orders", 2), None)

    store.before = subsume
    assert newest_valid(store, "orders") == (older, [])


def test_loading_an_absent_checkpoint_says_so(store: MemoryStore) -> None:
    with pytest.raises(NotFound):
        load(store, "orders", 1)


def test_loading_a_damaged_checkpoint_says_so(store: MemoryStore) -> None:
    written(store, 1)
    damage(store, metadata_path("orders", 1))
    with pytest.raises(CorruptMetadata):
        load(store, "orders", 1)


def test_an_undamaged_checkpoint_verifies(store: MemoryStore) -> None:
    written(store, 1)
    assert verify(store, "orders", 1) == []


def test_every_flipped_bit_of_every_file_of_a_checkpoint_is_found(store: MemoryStore) -> None:
    written(store, 1)
    whole = dict(store.objects)
    for path, data in whole.items():
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            store.objects[path] = bytes(flipped)
            assert len(verify(store, "orders", 1)) == 1, f"bit {bit} of {path}"
        store.objects[path] = data
    assert verify(store, "orders", 1) == []


def test_verifying_names_the_state_and_what_is_wrong(store: MemoryStore) -> None:
    metadata = written(store, 1)
    path = segment_path("orders", 1, 0, 1)
    assert verify(store, "orders", 2) == ["orders/sav-2/metadata: not found"]
    (handle,) = metadata.subtasks[0].states
    wrong = msgspec.structs.replace(handle, rows=3)
    del store.objects[metadata_path("orders", 1)]
    subtask = msgspec.structs.replace(metadata.subtasks[0], states=[wrong])
    publish(store, msgspec.structs.replace(metadata, subtasks=[subtask]))
    assert verify(store, "orders", 1) == [
        f"{path}: state 'totals' of 'sum': expected 3 rows, found 2"
    ]


def test_publishing_twice_is_harmless_and_publishing_something_else_is_refused(
    store: MemoryStore,
) -> None:
    metadata = written(store, 1)
    publish(store, metadata)
    with pytest.raises(AlreadyExists):
        publish(store, msgspec.structs.replace(metadata, epoch=2))
    assert load(store, "orders", 1) == metadata


def test_what_was_written_for_a_checkpoint_goes_without_savepoints_and_shared_files_of_others(
    store: MemoryStore,
) -> None:
    written(store, 1)
    written(store, 2)
    written(store, 1, savepoint=True)
    store.put("orders/shared/sst", b"x")
    withdraw(store, "orders", 1)
    assert deleted(store) == ["orders/chk-1/metadata"]
    delete_written(store, "orders", 1)
    assert deleted(store)[1:] == ["orders/chk-1/worker-0-e1.segment"]
    assert complete_checkpoints(store, "orders") == [2, 1]
    assert "orders/shared/sst" in store.objects


def test_a_deletion_that_fails_halfway_can_be_repeated(store: MemoryStore) -> None:
    written(store, 1)
    withdraw(store, "orders", 1)

    def fail(operation: str, path: str) -> None:
        if operation == "delete" and path.endswith("segment"):
            raise StoreUncertain(path, "no answer")

    store.before = fail
    with pytest.raises(StoreUncertain):
        delete_written(store, "orders", 1)
    assert complete_checkpoints(store, "orders") == []
    assert incomplete_checkpoints(store, "orders") == [1]
    store.before = lambda operation, path: None
    delete_written(store, "orders", 1)
    assert store.objects == {}


def test_epochs_grow_and_are_counted_per_job(store: MemoryStore) -> None:
    assert newest_epoch(store, "orders") is None
    assert [claim_epoch(store, "orders") for _ in range(3)] == [1, 2, 3]
    assert claim_epoch(store, "payments") == 1
    assert newest_epoch(store, "orders") == 3


def test_an_epoch_is_above_all_existing_ones_and_foreign_files_do_not_matter(
    store: MemoryStore,
) -> None:
    store.put(epoch_path("orders", 41), b"")
    store.put("orders/epochs/README", b"")
    store.put("orders/epochs/007", b"")
    assert claim_epoch(store, "orders") == 42


def test_an_epoch_that_was_used_does_not_come_again_when_the_folder_is_lost(
    store: MemoryStore,
) -> None:
    assert claim_epoch(store, "orders", above=7) == 8


def test_who_has_an_epoch_claims_none_above_a_newer_one(store: MemoryStore) -> None:
    """A coordinator that was frozen after an earlier look would end its successor."""
    assert claim_epoch(store, "orders") == 1
    assert claim_epoch(store, "orders") == 2
    with pytest.raises(EpochTaken):
        claim_epoch(store, "orders", above=1)
    assert claim_epoch(store, "orders", above=2) == 3


def test_a_rival_that_claims_in_between_gets_another_epoch(store: MemoryStore) -> None:
    def rival(operation: str, path: str) -> None:
        if operation == "create" and path in (epoch_path("orders", 1), epoch_path("orders", 2)):
            store.objects.setdefault(path, b"rival\n")

    store.before = rival
    assert claim_epoch(store, "orders") == 3


def test_an_uncertain_claim_is_left_behind(store: MemoryStore) -> None:
    def lose_reply(operation: str, path: str) -> None:
        if operation == "create" and path == epoch_path("orders", 1):
            store.objects[path] = b"orders\n"
            raise StoreUncertain(path, "no answer")

    store.before = lose_reply
    assert claim_epoch(store, "orders") == 2


@pytest.mark.parametrize(
    ("answer", "tried"), [(AlreadyExists, 0), (StoreUncertain, CLAIM_ATTEMPTS_MAX)]
)
def test_claiming_gives_up_after_many_attempts(
    store: MemoryStore, answer: type[StoreError], tried: int
) -> None:
    asked: list[str] = []

    def refuse(operation: str, path: str) -> None:
        if operation == "create":
            asked.append(path)
            raise answer(path, "no")

    store.before = refuse
    with pytest.raises(ClaimFailed) as failed:
        claim_epoch(store, "orders")
    assert len(asked) == CLAIM_ATTEMPTS_MAX
    assert failed.value.tried == tried


def test_a_failed_claim_tells_of_its_own_ghost(store: MemoryStore) -> None:
    answers = iter([StoreUncertain, StoreRejected])

    def refuse(operation: str, path: str) -> None:
        if operation == "create":
            raise next(answers)(path, "no")

    store.before = refuse
    with pytest.raises(ClaimFailed) as failed:
        claim_epoch(store, "orders", above=4)
    assert failed.value.tried == 5


def test_storage_that_refuses_a_claim_is_not_asked_again(store: MemoryStore) -> None:
    def refuse(operation: str, path: str) -> None:
        if operation == "create":
            raise StoreRejected(path, "no space left on the device")

    store.before = refuse
    with pytest.raises(StoreRejected, match="no space"):
        claim_epoch(store, "orders")


def test_a_checkpoint_whose_file_cannot_be_read_for_now_is_not_passed_over(
    store: MemoryStore,
) -> None:
    """An older one would write once more what the newest has committed."""
    written(store, 1)
    written(store, 2)

    def refuse(operation: str, path: str) -> None:
        if operation == "get" and path == segment_path("orders", 2, 0, 1):
            raise StoreRejected(path, "input/output error")

    store.before = refuse
    with pytest.raises(StoreRejected, match="input/output error"):
        newest_valid(store, "orders")
