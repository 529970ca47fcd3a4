"""Retention: which complete checkpoints stay, and what is deleted when, also if storage refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
import pytest

from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.earlier_runs import EarlierRuns
from headrace.engine.coordinator.retention import Retention
from headrace.engine.drivers.coordinator_performer import delete_files, withdraw_checkpoints
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery import catalog
from headrace.recovery.handles import StateHandle
from headrace.recovery.layout import store_path
from headrace.recovery.links import CheckpointLink
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TaskInfo
from headrace.recovery.registry import Deletable, references
from headrace.recovery.store import StoreError, StoreRejected, StoreUncertain

from .driven_coordinator import Driven, a_checkpoint, running

metadata = a_checkpoint


def performed(
    retention: Retention, effects: Sequence[d.CoordinatorEffect]
) -> tuple[Deletable, list[CheckpointLink]]:
    """Storage deletes all that it is asked to; returns files, and claims."""
    files, claims, todo = Deletable(), list[CheckpointLink](), list(effects)
    while todo:
        match todo.pop(0):
            case d.WithdrawCheckpoints(asked):
                todo += retention.withdrawn(d.CheckpointsWithdrawn(asked, asked))
            case d.DeleteFiles(what):
                files = what
                retention.deleted(d.FilesDeleted(Deletable()))
            case d.ReleaseClaim(link):
                claims.append(link)
                todo += retention.released(d.ClaimReleased(link))
    assert not retention.awaits
    return files, claims


def swept(retention: Retention) -> Deletable:
    """What storage is to delete, and deletes."""
    return performed(retention, retention.sweep())[0]


def complete(retention: Retention, checkpoint: int) -> tuple[int, ...]:
    """Complete a checkpoint; returns which go."""
    retention.triggered(checkpoint)
    retention.completed(metadata(checkpoint))
    retention.check()
    return swept(retention).checkpoints


def test_retention_keeps_the_newest_and_names_the_rest() -> None:
    retention = Retention(None, retain=2)
    assert [complete(retention, n) for n in (1, 2, 3, 5)] == [(), (), (1,), (2,)]


def test_the_restored_checkpoint_is_subsumed_like_any_other() -> None:
    retention = Retention(metadata(4), retain=1)
    assert complete(retention, 5) == (4,)


def test_what_was_given_up_is_deleted_with_the_next_completion() -> None:
    retention = Retention(None, retain=1)
    for number in (1, 2):
        retention.triggered(number)
        retention.given_up(number)
    assert swept(retention).checkpoints == (), "the next one may name what was written for them"
    assert complete(retention, 3) == (1, 2)
    assert complete(retention, 4) == (1, 2, 3), "an upload may have been under way still"
    assert complete(retention, 5) == (4,)


def test_nothing_is_deleted_while_a_checkpoint_is_under_way_that_may_refer_to_it() -> None:
    retention = Retention(None, retain=1)
    complete(retention, 1)
    for number in (2, 3):
        retention.triggered(number)
    retention.completed(metadata(2))
    assert swept(retention).checkpoints == ()
    retention.triggered(4)
    retention.completed(metadata(3))
    assert swept(retention).checkpoints == (1,), "4 was triggered after 2 had taken its place"
    assert swept(retention).checkpoints == (), "each is named once"


def test_what_a_job_was_started_from_is_its_own_only_if_it_is_a_checkpoint_of_its_directory() -> (
    None
):
    savepoint = msgspec.structs.replace(metadata(4), savepoint=True)
    assert complete(Retention(savepoint, retain=1), 5) == ()
    assert complete(Retention(metadata(4), retain=1, elsewhere=True), 5) == ()


def referring(checkpoint: int, path: str) -> CheckpointMetadata:
    """A checkpoint with one in-flight record, stored at `path`."""
    buffer = BufferHandle(path, 8, 100, "0" * 16, 1, 0, 1)
    handle = ChannelStateHandle(0, 0, 0, "input", 0, [buffer], ended=False)
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], [handle])
    return msgspec.structs.replace(metadata(checkpoint), subtasks=[subtask])


def test_a_file_outlives_its_checkpoint_as_long_as_another_refers_to_it() -> None:
    path = "chk-1/worker-0-e1.segment"
    retention = Retention(None, retain=1)
    for number in (1, 2):
        retention.triggered(number)
        retention.completed(referring(number, path))
    assert swept(retention) == Deletable((1,), frozenset({path}), ())
    retention.triggered(3)
    retention.completed(metadata(3))
    assert swept(retention) == Deletable((2,), frozenset(), (path,))


def test_an_older_checkpoint_cannot_complete_later() -> None:
    retention = Retention(None, retain=1)
    retention.triggered(1)
    complete(retention, 2)
    with pytest.raises(AssertionError, match="an older one came later"):
        retention.completed(metadata(1))


# --- claims ---------------------------------------------------------------------------------------

CLAIM = CheckpointLink(
    number=4, directory="/old", job="old", checkpoint=9, savepoint=False, claimed=True
)


def replaying(checkpoint: int) -> CheckpointMetadata:
    """A checkpoint in whose cut something of the attempt before was still to be read."""
    buffer = BufferHandle("chk-5/worker-0-e1.segment", 64, 10, "a" * 16, 1, 0, 1)
    left = ChannelStateHandle(0, 0, 0, "replay", 0, [buffer], ended=False)
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], [left])
    return msgspec.structs.replace(metadata(checkpoint), subtasks=[subtask])


def with_claim(*, retain: int = 1) -> Retention:
    claimed = metadata(9)
    retention = Retention(claimed, retain, elsewhere=True, claim=CLAIM)
    retention.started(claimed, 1)
    return retention


def completing(retention: Retention, it: CheckpointMetadata) -> list[CheckpointLink]:
    """Complete a checkpoint; returns the claims to be released."""
    retention.triggered(it.checkpoint)
    retention.completed(it)
    retention.check()
    return performed(retention, retention.sweep())[1]


def test_a_claim_is_retained_like_a_checkpoint_and_then_released() -> None:
    retention = with_claim(retain=2)
    assert completing(retention, metadata(5)) == []
    assert completing(retention, metadata(6)) == [CLAIM]
    assert completing(retention, metadata(7)) == []


def test_a_claim_that_is_subsumed_is_kept_while_it_is_replayed() -> None:
    retention = with_claim()
    assert completing(retention, replaying(5)) == []
    assert completing(retention, replaying(6)) == []
    assert completing(retention, metadata(7)) == [CLAIM]


def test_a_claim_is_read_no_more_when_an_attempt_starts_from_an_own_checkpoint() -> None:
    retention = with_claim()
    assert completing(retention, replaying(5)) == []
    retention.started(replaying(5), 2)
    assert completing(retention, replaying(6)) == [CLAIM]


def test_a_claim_that_is_subsumed_goes_at_the_end_of_the_job() -> None:
    retention = with_claim()
    assert completing(retention, replaying(5)) == []
    assert performed(retention, retention.end())[1] == [CLAIM]


def test_a_claim_waits_for_checkpoints_under_way_which_may_copy_from_it() -> None:
    retention = with_claim()
    retention.triggered(5, "")
    assert completing(retention, metadata(6)) == []
    retention.saved(5)
    assert completing(retention, metadata(7)) == [CLAIM]


def test_what_was_not_released_is_named_again() -> None:
    retention = with_claim()
    retention.triggered(5)
    retention.completed(metadata(5))
    assert retention.sweep() == [d.ReleaseClaim(CLAIM)]
    assert retention.awaits
    assert retention.released(d.ClaimReleased(CLAIM, "busy", again=True)) == []
    assert completing(retention, metadata(6)) == [CLAIM]


def test_a_later_run_retains_and_releases_what_an_earlier_one_has_claimed() -> None:
    earlier = EarlierRuns(older=(metadata(3),), claims=(CLAIM,))
    retention = Retention(metadata(5), 3, earlier=earlier)
    assert completing(retention, metadata(6)) == []
    assert completing(retention, metadata(7)) == [CLAIM]


def test_a_claim_that_stays_for_good_is_told_and_not_named_again() -> None:
    retention = with_claim()
    retention.triggered(5)
    retention.completed(metadata(5))
    assert retention.sweep() == [d.ReleaseClaim(CLAIM)]
    told = retention.released(d.ClaimReleased(CLAIM, "it is the user's"))
    assert told == [d.Notice(d.NoticeKind.WARNING, "it is the user's")]
    assert completing(retention, metadata(6)) == []


def test_the_state_can_be_read_as_text() -> None:
    retention = Retention(None, retain=2)
    complete(retention, 1)
    assert retention.describe() == "complete=[1]"


# --- storage that refuses -------------------------------------------------------------------------

#: {checkpoint: files that it names}; each also wrote one that nobody names.
NAMED = {
    1: ["chk-1/a", "shared/1-w0-e1-0000000000000001"],
    2: ["chk-1/a", "shared/1-w0-e1-0000000000000001", "chk-2/a"],
    3: ["chk-2/a", "chk-3/a"],
    4: ["chk-4/a"],
    5: ["chk-4/a"],
}
#: Which deletions can be refused: metadata of a checkpoint, a file in its folder, one that was
#: shared.
DELETIONS = (
    "job/chk-1/metadata",
    "job/chk-2/metadata",
    "job/chk-1/a",
    "job/chk-2/a",
    "job/shared/1-w0-e1-0000000000000001",
)


class Job:
    """Retention, its orders, and storage that refuses some deletions."""

    def __init__(self, retain: int = 1) -> None:
        self.store = MemoryStore()
        self.retention = Retention(None, retain)
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
        self.retention.triggered(checkpoint)
        catalog.publish(self.store, metadata)
        self.retention.completed(metadata)
        self.effects += self.retention.sweep()
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
                    self.effects += self.retention.withdrawn(withdrawn)
                case d.DeleteFiles(what, patient):
                    deleted = delete_files(
                        self.store, "job", what, patient=patient, sleep=self._pause
                    )
                    assert isinstance(deleted, d.FilesDeleted)
                    self.retention.deleted(deleted)
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
    assert not job.retention.awaits
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


# --- the end of the job ---------------------------------------------------------------------------


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
    assert effects == ["Abandon to 0", "Abandon to 1", "recover sinks in 1: []"]
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
