"""What a live checkpoint names is there and stays as it is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.engine.simulation.campaign.storage import SimulatedStorage
from headrace.recovery import catalog
from headrace.recovery.handles import StateHandle
from headrace.recovery.history import EpochStart
from headrace.recovery.layout import handle_path, segment_path
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TaskInfo

FILE = segment_path("job", 1, 0, 1)


def _metadata() -> CheckpointMetadata:
    handle = StateHandle("sum", "s", "list", handle_path("job", FILE), 0, 3, "0" * 16, 1)
    subtask = SubtaskSnapshot(0, 0, finished=False, states=[handle], received=[], sent=[])
    return CheckpointMetadata(
        *("job", 1, 1, "aligned"),
        savepoint=False,
        created_ms=0,
        duration_ns=0,
        max_parallelism=16,
        tasks=[TaskInfo("sum", ["sum"], ["sum"], 1)],
        edges=[],
        subtasks=[subtask],
        transactions=[],
    )


@pytest.fixture
def storage() -> SimulatedStorage:
    """With one complete checkpoint."""
    made = SimulatedStorage()
    made.put(FILE, b"abc")
    catalog.publish(made, _metadata())
    assert not made.audit.broken
    return made


def test_a_checkpoint_that_goes_metadata_first_breaks_nothing(storage: SimulatedStorage) -> None:
    storage.put(FILE, b"abc")
    catalog.withdraw(storage, "job", 1)
    catalog.delete_written(storage, "job", 1)
    assert storage.list("") == []
    assert not storage.audit.broken


def test_a_file_that_is_deleted_under_a_live_checkpoint_is_told(storage: SimulatedStorage) -> None:
    storage.delete(FILE)
    assert storage.audit.broken == f"{FILE} is deleted, which job/chk-1/metadata names"


def test_a_file_that_is_written_over_is_told(storage: SimulatedStorage) -> None:
    storage.put(FILE, b"abd")
    assert storage.audit.broken == f"{FILE} is written over, which job/chk-1/metadata names"


def test_a_new_driver_answers_for_the_checkpoint_that_it_goes_on_from(
    storage: SimulatedStorage,
) -> None:
    storage.audit.inherited(1)
    assert storage.audit.names(FILE)
    storage.audit.inherited(2)
    storage.delete(FILE)
    assert not storage.audit.broken


def test_metadata_that_comes_before_its_files_is_told() -> None:
    storage = SimulatedStorage()
    catalog.publish(storage, _metadata())
    assert storage.audit.broken == f"job/chk-1/metadata is there, and ['{FILE}'] are not"


def _without_its_file(epoch: int) -> SimulatedStorage:
    """chk-2 of epoch 3 is complete; chk-1 of `epoch` comes when its file is gone."""
    storage = SimulatedStorage()
    catalog.note_start(storage, "job", EpochStart(3, 0, 0))
    newer = SubtaskSnapshot(0, 0, finished=False, states=[], received=[], sent=[])
    catalog.publish(storage, replace(_metadata(), checkpoint=2, epoch=3, subtasks=[newer]))
    catalog.publish(storage, replace(_metadata(), epoch=epoch))
    return storage


def test_a_frozen_driver_may_complete_what_a_newer_one_has_deleted() -> None:
    assert not _without_its_file(epoch=1).audit.broken
    assert "metadata is there, and" in _without_its_file(epoch=3).audit.broken
