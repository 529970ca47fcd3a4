"""What the coordinator's effects do with storage and sinks, when these work and when they do
not.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.engine.contract.operators import Transaction
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.drivers import coordinator_performer as storage
from headrace.engine.drivers.coordinator_performer import (
    Sinks,
    claim_epoch,
    delete_files,
    find_checkpoint,
    recover_sinks,
    withdraw_checkpoints,
    write_metadata,
)
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery import catalog
from headrace.recovery.history import EpochStart
from headrace.recovery.layout import epoch_path, metadata_path
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord
from headrace.recovery.registry import Deletable
from headrace.recovery.store import (
    StoreRejected,
    StoreUncertain,
)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(storage, "_PAUSE_S", 0.0)
    return MemoryStore()


def metadata(checkpoint: int, epoch: int = 1) -> CheckpointMetadata:
    return CheckpointMetadata(
        job="job",
        checkpoint=checkpoint,
        epoch=epoch,
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


# --- epochs ---------------------------------------------------------------------------------------


def test_epochs_rise_with_every_claim(store: MemoryStore) -> None:
    assert claim_epoch(store, "job", 0) == d.EpochClaimed(1)
    assert claim_epoch(store, "job", 1) == d.EpochClaimed(2)
    assert claim_epoch(store, "other", 0) == d.EpochClaimed(1)


def test_a_new_coordinator_takes_over_from_whoever_was_there(store: MemoryStore) -> None:
    store.create(epoch_path("job", 41), b"")
    assert claim_epoch(store, "job", 0) == d.EpochClaimed(42)


def test_a_coordinator_that_finds_a_higher_epoch_than_its_own_stops(store: MemoryStore) -> None:
    store.create(epoch_path("job", 1), b"")
    store.create(epoch_path("job", 2), b"")
    answer = claim_epoch(store, "job", 1)
    assert isinstance(answer, d.Superseded)
    assert "it claimed epoch 2, this one has 1" in answer.reason
    assert len(store.objects) == 2, "nothing was claimed"


@pytest.mark.parametrize("method", ["list", "create"])
def test_a_claim_that_storage_refuses_can_be_repeated(store: MemoryStore, method: str) -> None:
    store.fail(method, StoreRejected)
    assert isinstance(claim_epoch(store, "job", 0), d.EpochClaimFailed)
    assert claim_epoch(store, "job", 0) == d.EpochClaimed(1)


def test_a_claim_whose_outcome_is_unknown_is_left_behind(store: MemoryStore) -> None:
    store.fail("create", StoreUncertain, happened=True)
    assert claim_epoch(store, "job", 0) == d.EpochClaimed(2)


def test_without_storage_epochs_are_counted_in_memory() -> None:
    assert claim_epoch(None, "job", 3) == d.EpochClaimed(4)


# --- metadata -------------------------------------------------------------------------------------


def test_written_metadata_are_visible(store: MemoryStore) -> None:
    assert write_metadata(store, metadata(3)) == [d.MetadataWritten(3)]
    assert catalog.load(store, "job", 3) == metadata(3)


def test_an_uncertain_write_is_repeated_until_it_is_certain(store: MemoryStore) -> None:
    store.fail("create", StoreUncertain, StoreUncertain)
    assert write_metadata(store, metadata(3)) == [d.MetadataWritten(3)]
    assert store.methods.count("create") == 3


def test_a_write_that_happened_although_its_reply_was_lost_counts_once(store: MemoryStore) -> None:
    store.fail("create", StoreUncertain, happened=True)
    assert write_metadata(store, metadata(3)) == [d.MetadataWritten(3)]
    assert catalog.complete_checkpoints(store, "job") == [3]


def test_a_checkpoint_that_is_visible_is_not_taken_back_because_storage_does_not_answer(
    store: MemoryStore,
) -> None:
    """Another driver may have started from it."""
    create = store.create

    def created(path: str, data: bytes) -> None:
        create(path, data)
        store.fail("list", StoreUncertain, StoreRejected)

    store.create = created  # type: ignore[method-assign]  # from then on listing fails, twice
    assert write_metadata(store, metadata(3), sleep=lambda seconds: None) == [d.MetadataWritten(3)]
    assert store.methods.count("list") == 4
    assert "delete" not in store.methods


def test_a_refused_write_is_discarded_for_certain(store: MemoryStore) -> None:
    store.put("job/chk-3/worker-0-e1.segment", b"data")
    store.fail("create", StoreRejected)
    (answer,) = write_metadata(store, metadata(3))
    assert isinstance(answer, d.MetadataDiscarded)
    assert "could not be written: job/chk-3/metadata: as planned" in answer.reason
    assert catalog.complete_checkpoints(store, "job") == []
    assert list(store.objects) == ["job/chk-3/worker-0-e1.segment"], "it may serve the next one"


def test_a_write_that_stays_uncertain_is_repeated_and_never_taken_back(store: MemoryStore) -> None:
    """A rival may have started from it."""
    store.fail("create", *[StoreUncertain] * 9, happened=True)
    assert write_metadata(store, metadata(3)) == [d.MetadataWritten(3)]
    assert "delete" not in store.methods


@pytest.mark.parametrize("happened", [True, False])
def test_a_refusal_after_an_uncertain_write_says_nothing_about_that(
    store: MemoryStore, happened: bool
) -> None:
    store.fail("create", StoreUncertain, happened=happened)
    store.fail("create", StoreRejected)
    store.fail("get", StoreUncertain, StoreRejected)
    (answer,) = write_metadata(store, metadata(3))
    assert isinstance(answer, d.MetadataWritten if happened else d.MetadataDiscarded)
    assert catalog.complete_checkpoints(store, "job") == ([3] if happened else [])
    assert "delete" not in store.methods


def test_a_coordinator_whose_write_is_uncertain_gives_way_to_a_rival_and_leaves_it(
    store: MemoryStore,
) -> None:
    def rival(seconds: float) -> None:
        store.objects[epoch_path("job", 2)] = b""

    store.fail("create", StoreUncertain, happened=True)
    superseded, discarded = write_metadata(store, metadata(3, epoch=1), sleep=rival)
    assert isinstance(superseded, d.Superseded)
    assert isinstance(discarded, d.MetadataDiscarded)
    assert catalog.complete_checkpoints(store, "job") == [3]


def test_a_coordinator_with_an_older_epoch_writes_nothing(store: MemoryStore) -> None:
    store.create(epoch_path("job", 2), b"")
    superseded, discarded = write_metadata(store, metadata(3, epoch=1))
    assert isinstance(superseded, d.Superseded), "known before the coordinator goes on"
    assert isinstance(discarded, d.MetadataDiscarded)
    assert not catalog.complete_checkpoints(store, "job")


def test_a_checkpoint_that_somebody_else_completed_is_left_alone(store: MemoryStore) -> None:
    catalog.publish(store, metadata(3, epoch=7))
    superseded, discarded = write_metadata(store, metadata(3, epoch=1))
    assert isinstance(superseded, d.Superseded)
    assert isinstance(discarded, d.MetadataDiscarded)
    assert catalog.load(store, "job", 3).epoch == 7


def test_without_storage_a_checkpoint_is_complete_at_once() -> None:
    assert write_metadata(None, metadata(3)) == [d.MetadataWritten(3)]


# --- finding and deleting -------------------------------------------------------------------------


def test_the_newest_checkpoint_below_the_damaged_one_is_found(store: MemoryStore) -> None:
    for number in (1, 2, 3, 4):
        catalog.publish(store, metadata(number))
    assert find_checkpoint(store, "job", 4) == d.CheckpointFound(metadata(3))


def test_damaged_metadata_on_the_way_are_passed_over(store: MemoryStore) -> None:
    for number in (1, 2, 3):
        catalog.publish(store, metadata(number))
    store.put(metadata_path("job", 2), b"rubbish")
    assert find_checkpoint(store, "job", 3) == d.CheckpointFound(metadata(1))


def test_that_there_is_none_is_an_answer(store: MemoryStore) -> None:
    catalog.publish(store, metadata(3))
    assert find_checkpoint(store, "job", 3) == d.CheckpointFound(None)
    assert find_checkpoint(None, "job", 3) == d.CheckpointFound(None)


@pytest.mark.parametrize("method", ["list", "get"])
def test_storage_that_does_not_answer_is_not_taken_for_an_empty_one(
    store: MemoryStore, method: str
) -> None:
    catalog.publish(store, metadata(1))
    store.fail(method, StoreUncertain)
    answer = find_checkpoint(store, "job", 3)
    assert isinstance(answer, d.LauncherFailed)


def test_a_withdrawn_checkpoint_is_gone_and_then_its_files_are(store: MemoryStore) -> None:
    catalog.publish(store, metadata(1))
    store.put("job/chk-1/worker-0-e1.segment", b"data")
    store.put("job/chk-10/worker-0-e1.segment", b"data")
    assert withdraw_checkpoints(store, "job", (1,)) == d.CheckpointsWithdrawn((1,), (1,))
    assert catalog.complete_checkpoints(store, "job") == []
    assert len(store.objects) == 2
    assert delete_files(store, "job", Deletable((1,))) == d.FilesDeleted(Deletable())
    assert list(store.objects) == ["job/chk-10/worker-0-e1.segment"]


def test_without_storage_nothing_is_left() -> None:
    assert withdraw_checkpoints(None, "job", (1,)) == d.CheckpointsWithdrawn((1,), (1,))
    assert delete_files(None, "job", Deletable((1,))) == d.FilesDeleted(Deletable())


def test_files_that_others_refer_to_stay_until_they_are_named() -> None:
    store = MemoryStore()
    store.put("job/chk-1/worker-0-e1.segment", b"data")
    shared = "chk-1/worker-0-e1.segment"
    delete_files(store, "job", Deletable((1,), frozenset({shared})))
    assert list(store.objects) == [f"job/{shared}"]
    delete_files(store, "job", Deletable(files=(shared,)))
    assert store.objects == {}


@pytest.mark.parametrize("happened", [True, False])
def test_what_is_not_certainly_withdrawn_does_not_count_as_that(
    store: MemoryStore, happened: bool
) -> None:
    for number in (1, 2, 3):
        catalog.publish(store, metadata(number))
    store.fail("delete", StoreUncertain, happened=happened)
    store.fail("delete", StoreRejected)
    answer = withdraw_checkpoints(store, "job", (1, 2, 3))
    assert answer == d.CheckpointsWithdrawn((1, 2, 3), (3,))
    # One that is absent, perhaps because nobody said that it was deleted, is withdrawn.
    answer = withdraw_checkpoints(store, "job", (1, 2, 7))
    assert answer == d.CheckpointsWithdrawn((1, 2, 7), (1, 2, 7))


def test_what_is_left_is_told_and_the_rest_is_deleted(store: MemoryStore) -> None:
    savepoint = "job/sav-4/worker-0-e1.segment"
    for path in ("job/chk-1/a", "job/chk-2/b", "job/chk-3/c", "job/chk-3/d", savepoint):
        store.put(path, b"data")
    what = Deletable((1, 2), frozenset(), ("chk-3/c", "chk-3/d"), ((4, ""),))
    refused = iter([False, True, True, False, True])
    delete = store.delete

    def refuse(path: str) -> None:
        if next(refused):
            raise StoreRejected(path, "as planned")
        delete(path)

    store.delete = refuse  # type: ignore[method-assign]  # now and then
    left = Deletable((2,), frozenset(), ("chk-3/c",), ((4, ""),))
    assert delete_files(store, "job", what) == d.FilesDeleted(left)
    assert sorted(store.objects) == ["job/chk-2/b", "job/chk-3/c", savepoint]
    store.delete = delete  # type: ignore[method-assign]  # it has recovered
    assert delete_files(store, "job", left) == d.FilesDeleted(Deletable())
    assert store.objects == {}


@pytest.mark.parametrize(("refusals", "gone"), [(4, (1,)), (5, ())])
def test_when_the_job_ends_storage_is_asked_several_times_but_not_for_ever(
    store: MemoryStore, refusals: int, gone: tuple[int, ...]
) -> None:
    catalog.publish(store, metadata(1))
    store.fail("delete", *[StoreRejected] * refusals)
    paused: list[float] = []
    answer = withdraw_checkpoints(store, "job", (1,), patient=True, sleep=paused.append)
    assert answer == d.CheckpointsWithdrawn((1,), gone)
    assert len(paused) == 4
    store.put("job/chk-2/a", b"data")
    store.fail("delete", *[StoreRejected] * refusals)
    answer = delete_files(store, "job", Deletable((2,)), patient=True, sleep=paused.append)
    assert answer == d.FilesDeleted(Deletable(() if gone else (2,)))


def test_a_driver_that_was_frozen_deletes_no_file_that_a_newer_one_wrote_under_its_number() -> None:
    store = MemoryStore()
    newer = [
        "job/chk-8/metadata",
        "job/chk-8/worker-0-e2.segment",
        f"job/shared/8-w0-e2-{'0' * 16}",
    ]
    for path in ("job/chk-8/worker-0-e1.segment", f"job/shared/8-w0-e1-{'0' * 16}", *newer):
        store.put(path, b"data")
    answer = delete_files(store, "job", Deletable((8,)), 1)
    assert answer == d.FilesDeleted(Deletable())
    assert sorted(store.objects) == sorted(newer)


def test_no_checkpoint_beside_the_history_is_found_for_a_damaged_one() -> None:
    store = MemoryStore()
    for number, epoch in ((3, 1), (4, 1), (6, 2)):
        catalog.publish(store, metadata(number, epoch=epoch))
    catalog.note_start(store, "job", EpochStart(2, 3, 1))
    assert find_checkpoint(store, "job", 6) == d.CheckpointFound(metadata(3, epoch=1))


# --- sinks ----------------------------------------------------------------------------------------


FIRST = d.RecoverSinks(1, ())


class FakeCommitter:
    """Notes what it is asked to do; fails when told to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.through: list[int | None] = []
        #: Checkpoints told with the calls, and the transactions of the last call.
        self.checkpoints: list[int] = []
        self.last: list[Transaction] = []
        self.failure: Exception | None = None

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        self._note("commit", checkpoint, transactions)

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        self.through.append(epoch)
        self._note("recover", checkpoint, committed)

    def _note(self, verb: str, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        if self.failure is not None:
            raise self.failure
        self.checkpoints.append(checkpoint)
        self.last = list(transactions)
        self.done.append(f"{verb} {' '.join(t.id for t in transactions)}".strip())


def record(sink: str, id: str) -> TransactionRecord:
    return TransactionRecord(sink, id, {})


def test_each_sink_commits_its_own_transactions_in_order() -> None:
    one, two, idle = FakeCommitter(), FakeCommitter(), FakeCommitter()
    sinks = Sinks({"one": one, "two": two, "idle": idle})
    records = [record("two", "b"), record("one", "a"), record("two", "c")]
    assert sinks.commit(7, records) == d.TransactionsCommitted(7)
    assert (one.done, two.done, idle.done) == (["commit a"], ["commit b c"], [])


def test_recovery_reaches_every_sink_so_that_each_aborts_what_is_open() -> None:
    one, idle = FakeCommitter(), FakeCommitter()
    answer = Sinks({"one": one, "idle": idle}).recover(3, 7, [record("one", "a")])
    assert answer == d.SinksRecovered(3)
    assert (one.done, idle.done) == (["recover a"], ["recover"])
    assert one.checkpoints == [7]


def test_a_committer_is_told_run_and_first_checkpoint_of_each_transaction() -> None:
    committer = FakeCommitter()
    sinks = Sinks({"one": committer})
    sinks.commit(7, [TransactionRecord("one", "a", {"rows": 1}, "r", 6)])
    assert committer.checkpoints == [7]
    assert committer.last == [Transaction("a", {"rows": 1}, run="r", checkpoint=6)]


def test_sinks_are_not_recovered_by_a_coordinator_that_was_replaced() -> None:
    """What is open in them is its successor's."""
    store, committer = MemoryStore(), FakeCommitter()
    sinks = Sinks({"one": committer})
    assert catalog.claim_epoch(store, "job") == 1
    assert recover_sinks(store, "job", sinks, FIRST) == d.SinksRecovered(1)
    assert catalog.claim_epoch(store, "job") == 2
    answer = recover_sinks(store, "job", sinks, FIRST)
    assert isinstance(answer, d.Superseded)
    assert (committer.done, committer.through) == (["recover"], [1])


def test_where_an_epoch_starts_is_noted_before_the_look_and_before_any_abort() -> None:
    """Then a successor that was not seen has seen the start."""
    store, committer = MemoryStore(), FakeCommitter()
    calls: list[str] = []
    store.before = lambda operation, path: calls.append(f"{operation} {path}")
    committer.failure = OSError("not yet")
    effect = d.RecoverSinks(4, (), EpochStart(4, 7, 3))
    assert isinstance(recover_sinks(store, "job", Sinks({"one": committer}), effect), d.SinkFailed)
    assert calls == ["create job/epochs/4-from-7-e3", "list job/epochs/"]


def test_sinks_are_not_recovered_while_the_start_is_not_noted() -> None:
    store, committer = MemoryStore(), FakeCommitter()
    store.fail("create", StoreUncertain)
    effect = d.RecoverSinks(4, (), EpochStart(4, 7, 3))
    assert isinstance(recover_sinks(store, "job", Sinks({"one": committer}), effect), d.SinkFailed)
    assert committer.done == []


def test_sinks_are_not_recovered_when_nobody_knows_whether_there_is_a_successor() -> None:
    store, committer = MemoryStore(), FakeCommitter()
    store.fail("list", StoreRejected)
    answer = recover_sinks(store, "job", Sinks({"one": committer}), FIRST)
    assert isinstance(answer, d.SinkFailed)
    assert committer.done == []


def test_without_storage_there_is_no_successor() -> None:
    committer = FakeCommitter()
    answer = recover_sinks(None, "job", Sinks({"one": committer}), FIRST)
    assert (answer, committer.through) == (d.SinksRecovered(1), [None])


def test_a_rival_that_claims_the_next_epoch_first_wins() -> None:
    store = MemoryStore()
    store.create(epoch_path("job", 2), b"")
    store.list = lambda prefix: [epoch_path("job", 1)]  # type: ignore[method-assign]  # as it was when we looked
    assert isinstance(claim_epoch(store, "job", above=1), d.Superseded)


def test_a_sink_that_fails_is_an_answer_and_no_exception() -> None:
    committer = FakeCommitter()
    committer.failure = OSError("the disk is gone")
    sinks = Sinks({"one": committer})
    committed = sinks.commit(7, [record("one", "a")])
    assert committed == d.SinkFailed(
        7, "the commit of chk-7 to sink 'one' failed: the disk is gone"
    )
    recovered = sinks.recover(3, 7, [])
    assert recovered == d.SinkFailed(None, "sink 'one' could not be recovered: the disk is gone")


def test_a_transaction_of_a_sink_that_is_gone_is_not_dropped() -> None:
    sinks = Sinks({"one": FakeCommitter()})
    answer = sinks.commit(7, [record("gone", "a")])
    assert isinstance(answer, d.SinkFailed)
    assert "no sink 'gone' to commit a to" in answer.reason
