"""Where a run starts: what `restore=` names is found, or refused with one clear sentence."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.channels.partitioners.partitioner import Affinity
from headrace.engine.contract.errors import StorageUnreachable, UserError
from headrace.engine.drivers.restore import (
    Restore,
    in_new_names,
    new_tasks,
    resolve,
    told_of_displaced,
)
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.assignment import NewTask
from headrace.recovery.history import EpochStart
from headrace.recovery.layout import metadata_path
from headrace.recovery.metadata import CheckpointMetadata, TaskInfo, TransactionRecord
from headrace.recovery.store import StoreUncertain


def metadata(checkpoint: int, job: str = "job") -> CheckpointMetadata:
    return CheckpointMetadata(
        job=job,
        checkpoint=checkpoint,
        epoch=1,
        mode="aligned",
        savepoint=False,
        created_ms=0,
        duration_ns=0,
        max_parallelism=128,
        tasks=[],
        edges=[],
        subtasks=[],
        transactions=[],
    )


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path))


def with_checkpoints(store: FsspecStore, *numbers: int) -> FsspecStore:
    for number in numbers:
        catalog.publish(store, metadata(number))
    return store


def test_a_fresh_run_uses_no_number_that_was_ever_used(store: FsspecStore) -> None:
    assert resolve(None, "job", None) == Restore(None, "", 1)
    assert resolve(store, "job", None) == Restore(None, "", 1)
    with_checkpoints(store, 2, 5)
    store.put("job/chk-9/worker-0-e1.segment", b"of a checkpoint that never completed")
    assert resolve(store, "job", None) == Restore(None, "", 10)


def test_auto_is_the_newest_checkpoint_or_the_beginning(store: FsspecStore) -> None:
    assert resolve(None, "job", "auto") == Restore(None, "", 1)
    assert resolve(store, "job", "auto") == Restore(None, "", 1)
    with_checkpoints(store, 2, 5)
    assert resolve(store, "job", "auto").metadata == metadata(5)


def test_auto_does_not_begin_anew_over_damage(store: FsspecStore) -> None:
    store.put(metadata_path("job", 6), b"rubbish")
    with pytest.raises(UserError, match=r"no undamaged checkpoint .*; fresh=True begins anew$"):
        resolve(store, "job", "auto")


def test_a_run_that_began_anew_hides_the_checkpoints_before_it(store: FsspecStore) -> None:
    """Else the same command would go on from the history that was given up."""
    with_checkpoints(store, 2, 5)
    catalog.note_start(store, "job", EpochStart(9, 0, 0))
    assert resolve(store, "job", "auto") == Restore(None, "", 6)
    with pytest.raises(UserError, match="no complete checkpoint there; leave restore out"):
        resolve(store, "job", "latest")
    newer = msgspec.structs.replace(metadata(7), epoch=9)
    catalog.publish(store, newer)
    assert resolve(store, "job", "auto").metadata == newer


def test_latest_is_the_newest_that_is_undamaged(store: FsspecStore) -> None:
    with_checkpoints(store, 2, 5, 6)
    store.put(metadata_path("job", 6), b"rubbish")
    found = resolve(store, "job", "latest")
    assert (found.metadata, found.origin, found.checkpoint_next) == (metadata(5), "", 7)
    (warning,) = found.warnings
    assert warning.startswith("chk-6 cannot be restored (")
    assert "chk-5 is used" in warning


@pytest.mark.parametrize("number", [2, "2"])
def test_a_number_names_a_checkpoint_of_the_job(store: FsspecStore, number: int | str) -> None:
    with_checkpoints(store, 2, 5)
    assert resolve(store, "job", number) == Restore(metadata(2), "", 6)


def test_a_path_names_a_checkpoint_anywhere(store: FsspecStore, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    catalog.publish(FsspecStore(str(other)), metadata(41, "older"))
    path = f"{other}/older/chk-41"
    for given in (path, f"{path}/"):
        assert resolve(None, "job", given) == Restore(metadata(41, "older"), str(other), 42)
    with_checkpoints(store, 77)
    assert resolve(store, "job", path).checkpoint_next == 78


@pytest.mark.parametrize(
    ("restore", "sentence"),
    [
        ("latest", "restore='latest': job 'other' has no complete checkpoint there"),
        ("newest", "restore='newest' is neither 'auto' nor 'latest', nor a number, nor a path"),
        ("-1", "restore='-1' is neither 'auto' nor 'latest'"),
        (4, "chk-4 of job 'other' is not complete or does not exist; complete are: none"),
    ],
)
def test_what_is_not_there_is_the_users_mistake(
    store: FsspecStore, restore: str | int, sentence: str
) -> None:
    with_checkpoints(store, 2)
    with pytest.raises(UserError) as caught:
        resolve(store, "other", restore)
    assert str(caught.value).startswith(sentence)


def test_the_complete_checkpoints_are_named_when_another_is_asked_for(store: FsspecStore) -> None:
    with pytest.raises(UserError, match="complete are: chk-5, chk-2"):
        resolve(with_checkpoints(store, 2, 5), "job", 3)


def test_restoring_needs_a_directory_or_a_path() -> None:
    with pytest.raises(UserError, match="needs a checkpoint directory"):
        resolve(None, "job", "latest")


def test_a_damaged_checkpoint_that_was_asked_for_is_refused(store: FsspecStore) -> None:
    with_checkpoints(store, 2)
    store.put(metadata_path("job", 2), b"rubbish")
    for restore in (2, "latest"):
        with pytest.raises(UserError, match=f"restore={restore!r}: "):
            resolve(store, "job", restore)


def test_a_folder_of_another_job_is_refused_also_for_a_fresh_run(store: FsspecStore) -> None:
    catalog.publish(store, metadata(1, "theirs"))
    store.put(metadata_path("mine", 1), store.get(metadata_path("theirs", 1)))
    with pytest.raises(UserError, match="belongs to job 'theirs', not to 'mine'"):
        resolve(store, "mine", None)


def test_storage_that_does_not_answer_is_not_the_users_mistake(
    store: FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: FsspecStore, prefix: str) -> list[str]:
        raise StoreUncertain(prefix, "no answer")

    monkeypatch.setattr(FsspecStore, "list", silent)
    with pytest.raises(StorageUnreachable, match=r"cannot be read: .*no answer"):
        resolve(store, "job", "latest")


def test_the_plan_is_told_by_names_channels_and_affinities() -> None:
    numbers = hr.read.sequence(10, name="numbers", parallelism=3)
    copies = numbers.broadcast().select("key", name="copies", parallelism=2)
    counted = copies.key_by("key").aggregate(n=hr.count(), name="counts", parallelism=2)
    plan = hr.Job("job", counted.write.blackhole(name="out", parallelism=1), parallelism=2).plan()
    tasks = {task.info.name: task for task in new_tasks(plan)}
    assert list(tasks) == ["numbers", "copies", "counts", "out"]
    assert tasks["counts"].info.stateful == ["counts"]
    assert [len(channels) for channels in tasks["copies"].channels] == [3, 3]
    affinities = {
        edge.key: edge.partitioner.affinity
        for task in tasks.values()
        for edge in task.edges.values()
    }
    assert affinities == {
        "numbers->copies/0": Affinity.COPY,
        "copies->counts/0": Affinity.RECORD,
        "counts->out/0": Affinity.NONE,
    }


@pytest.mark.parametrize("entry", ["epochs/999999999999999999", "chk-999999999999999999/x"])
def test_an_entry_after_which_no_number_is_left_is_refused(store: FsspecStore, entry: str) -> None:
    catalog.publish(store, metadata(3))
    store.put(f"job/{entry}", b"")
    with pytest.raises(UserError, match=r"holds \w+ 9{18}, which no run has made: move that entry"):
        resolve(store, "job", "latest")


def test_a_checkpoint_beside_the_history_is_passed_by_and_may_be_named(store: FsspecStore) -> None:
    for number in (3, 7):
        catalog.publish(store, metadata(number))
    catalog.note_start(store, "job", EpochStart(9, 3, metadata(3).epoch))
    assert resolve(store, "job", "latest").metadata == metadata(3)
    assert resolve(store, "job", 7).metadata == metadata(7)


def test_lost_metadata_of_a_start_is_told(store: FsspecStore) -> None:
    """Epoch 2 has started from checkpoint 5, so checkpoint 5 was complete."""
    with_checkpoints(store, 2, 5)
    catalog.note_start(store, "job", EpochStart(2, 5, 1))
    assert resolve(store, "job", "auto").warnings == ()
    store.delete(metadata_path("job", 5))
    found = resolve(store, "job", "auto")
    assert found.metadata == metadata(2)
    assert found.warnings == (
        (
            "chk-5 cannot be restored (epoch 2 started from it, and its metadata is not there any"
            " more); chk-2 is used, so what was committed to sinks after it will be written once"
            " more"
        ),
    )
    store.delete(metadata_path("job", 2))
    with pytest.raises(UserError, match=r"no complete checkpoint there \(chk-5: epoch 2 started"):
        resolve(store, "job", "auto")


def test_what_stands_in_the_place_of_metadata_is_told(store: FsspecStore) -> None:
    with_checkpoints(store, 2, 5)
    store.put("job/chk-5/worker-0-e1.segment", b"")
    found = resolve(store, "job", "auto")
    assert told_of_displaced(found, store, "job") == found
    at = Path(store.url, metadata_path("job", 5))
    at.rename(at.with_name("aside"))
    for reason in ("it is a symbolic link", "not a regular file"):
        if "link" in reason:
            at.symlink_to("aside")
        else:
            os.mkfifo(at)
        found = told_of_displaced(resolve(store, "job", "auto"), store, "job")
        assert found.metadata == metadata(2)
        (warning,) = found.warnings
        assert f"chk-5 cannot be restored (job/chk-5/metadata: {reason}); chk-2 is us" in warning
        at.unlink()
    at.mkdir()
    store.delete(metadata_path("job", 2))
    with pytest.raises(UserError, match="begin anew with fresh=True"):
        told_of_displaced(resolve(store, "job", "auto"), store, "job")


def test_a_sink_with_transactions_takes_a_new_name_unless_its_notes_are_found_by_the_old(
    store: FsspecStore,
) -> None:
    transaction = TransactionRecord("out", "a", {}, "run", 1)
    tasks = [TaskInfo("out", ["out"], ["out"], 1)]
    found = msgspec.structs.replace(metadata(1), tasks=tasks, transactions=[transaction])
    given = Restore(found, "", 2)
    new = [NewTask(TaskInfo("files", ["files"], ["files"], 1), [], {})]
    renamed = in_new_names(given, {"out": "files"}, new).metadata
    assert renamed is not None
    assert renamed.transactions == [msgspec.structs.replace(transaction, sink="files")]
    with pytest.raises(UserError, match="sink 'out' keeps its name, by which its notes are found"):
        in_new_names(given, {"out": "files"}, new, ["files"])
