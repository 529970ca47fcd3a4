"""What is deleted when, and what becomes of it when storage refuses; over the product's own functions on storage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
import pytest

from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.deletion import Deletion
from headrace.engine.coordinator.ledger import Ledger
from headrace.engine.drivers.coordinator_performer import delete_files, withdraw_checkpoints
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery import catalog
from headrace.recovery.layout import store_path
from headrace.recovery.metadata import StateHandle, SubtaskSnapshot, TaskInfo
from headrace.recovery.registry import Deletable, references
from headrace.recovery.store import StoreError, StoreRejected, StoreUncertain

from .driven_coordinator import Driven, a_checkpoint, running

#: {checkpoint: files that it names}; each also wrote one that nobody names.
NAMED = {
    1: ["chk-1/a", "shared/1-w0-e1-0000000000000001"],
    2: ["chk-1/a", "shared/1-w0-e1-0000000000000001", "chk-2/a"],
    3: ["chk-2/a", "chk-3/a"],
    4: ["chk-4/a"],
    5: ["chk-4/a"],
}
#: Which deletions can be refused: metadata of a checkpoint, a file in its folder, one that was shared.
DELETIONS = (
    "job/chk-1/metadata",
    "job/chk-2/metadata",
    "job/chk-1/a",
    "job/chk-2/a",
    "job/shared/1-w0-e1-0000000000000001",
)


class Job:
    """A ledger, what it orders of storage, and storage that refuses some deletions."""

    def __init__(self, retain: int = 1) -> None:
        self.store = MemoryStore()
        self.ledger = Ledger(None, retain)
        self.deletion = Deletion(self.ledger)
        self.effects: list[d.CoordinatorEffect] = []
        self.paused = 0

    def refuse(self, paths: Sequence[str], how: type[StoreError], *, happened: bool) -> None:
        """From now on."""
        delete = MemoryStore.delete

        def refusing(path: str) -> None:
            if path not in paths:
                return delete(self.store, path)
            if happened:
                delete(self.store, path)
            raise how(path, "as planned")

        self.store.delete = refusing  # type: ignore[method-assign]  # as the test wants it

    def complete(self, checkpoint: int) -> None:
        """With its files, and what follows from it."""
        for file in NAMED[checkpoint]:
            self.store.objects.setdefault(store_path("job", file), b"data")
        self.store.put(f"job/chk-{checkpoint}/unnamed", b"data")
        handles = [StateHandle("out", f, "keyed", f, 8, 1, "0" * 16, 1) for f in NAMED[checkpoint]]
        metadata = msgspec.structs.replace(
            a_checkpoint(checkpoint),
            tasks=[TaskInfo("out", ["out"], ["out"], 1)],
            subtasks=[SubtaskSnapshot(0, 0, False, handles, [], [])],
        )
        self.ledger.triggered(checkpoint)
        catalog.publish(self.store, metadata)
        self.ledger.completed(metadata)
        self.deletion.sweep(self.effects)
        self.delete()

    def delete(self) -> list[str]:
        """Carry out what was ordered; returns the notices."""
        notices: list[str] = []
        while self.effects:
            match self.effects.pop(0):
                case d.WithdrawCheckpoints(numbers, patient):
                    withdrawn = withdraw_checkpoints(
                        self.store, "job", numbers, patient=patient, sleep=self._pause
                    )
                    assert isinstance(withdrawn, d.CheckpointsWithdrawn)
                    self.deletion.withdrawn(withdrawn, self.effects)
                case d.DeleteFiles(what, patient):
                    deleted = delete_files(
                        self.store, "job", what, patient=patient, sleep=self._pause
                    )
                    assert isinstance(deleted, d.FilesDeleted)
                    self.deletion.deleted(deleted)
                case d.Notice(_, text):
                    notices.append(text)
            self.look()
        return notices

    def _pause(self, seconds: float) -> None:
        self.paused += 1

    def look(self) -> None:
        """Whatever looks complete is complete."""
        for number in catalog.complete_checkpoints(self.store, "job"):
            for file in references(catalog.load(self.store, "job", number)):
                assert store_path("job", file) in self.store.objects, (number, file)


def every_choice(of: Sequence[str]) -> list[tuple[str, ...]]:
    return [c for size in range(len(of) + 1) for c in itertools.combinations(of, size)]


@pytest.mark.parametrize(
    ("how", "happened"), [(StoreRejected, False), (StoreUncertain, False), (StoreUncertain, True)]
)
@pytest.mark.parametrize("refused", every_choice(DELETIONS), ids=lambda paths: str(len(paths)))
def test_what_a_checkpoint_names_stays_when_its_metadata_cannot_be_deleted(
    refused: tuple[str, ...], how: type[StoreError], happened: bool
) -> None:
    job = Job()
    job.refuse(refused, how, happened=happened)
    for number in (1, 2, 3, 4):
        job.complete(number)
    job.refuse((), how, happened=False)
    job.complete(5)
    left = {"job/chk-4/a", "job/chk-5/metadata", "job/chk-5/unnamed"}
    assert set(job.store.objects) == left, "what was refused is deleted later"


def test_what_storage_refuses_is_not_asked_for_again_before_the_next_occasion() -> None:
    job = Job()
    job.refuse(DELETIONS, StoreRejected, happened=False)
    job.complete(1)
    job.complete(2)
    assert job.store.methods.count("delete") == 0
    assert not job.deletion.awaits
    assert not job.effects
    assert job.paused == 0


def test_one_order_is_under_way_at_a_time() -> None:
    subject = running()
    subject.answers_deletions = False
    for number in (1, 2, 3):
        subject.at(subject.now_ns + 100_000_000)
        subject.checkpoint(number)
    assert subject.step(d.CheckpointsWithdrawn((1,), (1,))) == ["delete 1"]
    assert subject.step(d.FilesDeleted(Deletable())) == []
    subject.at(subject.now_ns + 100_000_000)
    subject.acknowledge(4)
    assert subject.step(d.MetadataWritten(4))[-1] == "withdraw 2 3"


# --- the end of the job -----------------------------------------------------------------------------------------------


def at_the_end(change: Callable[[Driven], None]) -> tuple[Driven, list[str]]:
    """A job with two checkpoints is stopped."""
    subject = running()
    change(subject)
    for number in (1, 2):
        subject.at(subject.now_ns + 100_000_000)
        subject.checkpoint(number)
    return subject, subject.step(d.StopRequested(d.StopKind.NOW))


def test_a_job_does_not_end_before_storage_has_answered() -> None:
    def slow(subject: Driven) -> None:
        subject.answers_deletions = False

    subject, effects = at_the_end(slow)
    assert effects == ["Abandon to 0", "Abandon to 1"]
    assert subject.step(d.CheckpointsWithdrawn((1,), ())) == ["withdraw 1 patiently"]
    assert subject.step(d.CheckpointsWithdrawn((1,), (1,))) == ["delete 1 patiently"]
    assert subject.step(d.FilesDeleted(Deletable()))[-1] == "stopped: stopped at once"
    assert not [text for text in subject.notices if text.startswith("warning")]


@pytest.mark.parametrize("which", ["not_withdrawn", "not_deleted"])
def test_a_job_ends_with_a_warning_although_storage_refuses_for_ever(which: str) -> None:
    def refusing(subject: Driven) -> None:
        getattr(subject, which).add(1)

    subject, effects = at_the_end(refusing)
    assert effects[-1] == "stopped: stopped at once"
    assert [text for text in subject.notices if text.startswith("warning")] == [
        "warning: storage did not delete chk-1; the next run of the job will try again"
    ]


def test_a_job_that_fails_waits_for_what_was_ordered_and_orders_nothing_more() -> None:
    subject = running()
    subject.answers_deletions = False
    for number in (1, 2):
        subject.at(subject.now_ns + 100_000_000)
        subject.checkpoint(number)
    assert subject.step(d.Superseded("another coordinator runs")) == [
        "Abandon to 0",
        "Abandon to 1",
    ]
    assert subject.step(d.CheckpointsWithdrawn((1,), (1,))) == ["delete 1"]
    effects = subject.step(d.FilesDeleted(Deletable((1,))))
    assert effects[-1] == "failed: another coordinator runs"


def test_nothing_is_deleted_while_an_older_checkpoint_may_be_returned_to() -> None:
    subject = running()
    subject.at(100_000_000)
    subject.checkpoint(1)
    subject.at(200_000_000)
    subject.acknowledge(2)
    subject.step(d.ConnectionLost(0, "reset"))
    assert "withdraw 1" not in subject.step(d.MetadataWritten(2))
