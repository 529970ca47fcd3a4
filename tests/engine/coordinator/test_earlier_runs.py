"""EarlierRuns: what earlier runs left is found, and told apart by whose history it is of."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import headrace as hr
from headrace.engine.contract.errors import StorageUnreachable
from headrace.engine.coordinator.earlier_runs import NO_EARLIER_RUNS, EarlierRuns, find_earlier_runs
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.history import EpochStart
from headrace.recovery.layout import metadata_path, segment_path, shared_path
from headrace.recovery.store import StoreUncertain

from .driven_coordinator import a_checkpoint


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path))


def with_complete(store: FsspecStore, *numbers: int) -> FsspecStore:
    for number in numbers:
        catalog.publish(store, a_checkpoint(number))
    return store


def test_without_a_directory_nothing_is_left() -> None:
    assert find_earlier_runs(None, "job", None, 1) == NO_EARLIER_RUNS


def test_what_is_older_than_the_restored_one_is_of_its_history(store: FsspecStore) -> None:
    with_complete(store, 2, 3, 5, 6)
    left = find_earlier_runs(store, "job", a_checkpoint(5), 7)
    assert left == EarlierRuns(older=(a_checkpoint(2), a_checkpoint(3)), others=(a_checkpoint(6),))


def test_a_run_that_starts_afresh_has_no_history(store: FsspecStore) -> None:
    with_complete(store, 2, 3)
    left = find_earlier_runs(store, "job", None, 4)
    assert left == EarlierRuns(others=(a_checkpoint(2), a_checkpoint(3)))


def test_files_of_checkpoints_that_were_never_complete_are_found(store: FsspecStore) -> None:
    with_complete(store, 2)
    store.put(segment_path("job", 3, 0, 1), b"part")
    store.put(shared_path("job", 1, 0, 1, "a" * 16), b"an SST file")
    store.put(shared_path("job", 9, 0, 1, "a" * 16), b"of a number that this run gives out itself")
    store.put("job/sav-4/worker-0-e1.segment", b"part of a savepoint")
    assert find_earlier_runs(store, "job", a_checkpoint(2), 5).abandoned == (1, 3)


def test_nothing_counts_as_abandoned_where_a_complete_one_cannot_be_read(
    store: FsspecStore,
) -> None:
    with_complete(store, 2, 4)
    store.put(segment_path("job", 3, 0, 1), b"part")
    store.put(metadata_path("job", 4), b"rubbish")
    assert find_earlier_runs(store, "job", a_checkpoint(2), 5) == NO_EARLIER_RUNS


def test_a_damaged_one_that_a_later_run_passed_over_is_abandoned(store: FsspecStore) -> None:
    with_complete(store, 2, 4, 6)
    store.put(metadata_path("job", 4), b"rubbish")
    store.put(segment_path("job", 4, 0, 1), b"part")
    assert find_earlier_runs(store, "job", a_checkpoint(6), 7).abandoned == ()
    catalog.note_start(store, "job", EpochStart(2, 2, 1))
    assert find_earlier_runs(store, "job", a_checkpoint(6), 7).abandoned == (4,)


def test_storage_that_does_not_answer_is_said(
    store: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: FsspecStore, prefix: str) -> list[str]:
        raise StoreUncertain(prefix, "no answer")

    monkeypatch.setattr(FsspecStore, "list", silent)
    with pytest.raises(StorageUnreachable, match="no answer"):
        find_earlier_runs(store, "job", None, 1)


def a_job(folder: Path, retain: int) -> hr.Job:
    numbers = hr.read.sequence(100, name="numbers")
    checkpoints = hr.Checkpoints(str(folder), interval=None, retain=retain)
    return hr.Job(
        "job", numbers.write.blackhole(name="out"), parallelism=1, checkpoints=checkpoints
    )


@pytest.mark.parametrize(("retain", "kept"), [(1, [10]), (2, [10, 7]), (5, [10, 7, 2])])
def test_the_next_run_retains_and_deletes_what_a_dead_driver_left(
    tmp_path: Path, retain: int, kept: list[int]
) -> None:
    a_job(tmp_path, 1).run("threads")
    store = FsspecStore(str(tmp_path))
    (first,) = catalog.complete_checkpoints(store, "job")
    whole = catalog.load(store, "job", first)
    catalog.withdraw(store, "job", first)
    catalog.delete_written(store, "job", first)
    for number in (2, 7):
        open_again = [
            replace(s, finished=False, states=[], sent=[], received=[]) for s in whole.subtasks
        ]
        catalog.publish(store, replace(whole, checkpoint=number, subtasks=open_again))
    store.put(segment_path("job", 9, 0, 1), b"part")
    a_job(tmp_path, retain).run("threads", restore="latest")
    assert catalog.complete_checkpoints(store, "job") == kept
    assert store.list("job/chk-9/") == []


def test_a_run_that_starts_afresh_leaves_what_is_there(tmp_path: Path) -> None:
    a_job(tmp_path, 1).run("threads")
    a_job(tmp_path, 1).run("threads", fresh=True)
    assert catalog.complete_checkpoints(FsspecStore(str(tmp_path)), "job") == [2, 1]
