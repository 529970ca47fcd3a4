"""The ledger: which checkpoint is the newest, what may be deleted, and what still awaits its commit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.coordinator.ledger import Ledger, metadata_of
from headrace.engine.coordinator.leftovers import Leftovers
from headrace.engine.coordinator.pending import PendingCheckpoint, SavepointOrder
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.elsewhere import Elsewhere
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TransactionRecord
from headrace.recovery.registry import Deletable


def record(id: str) -> TransactionRecord:
    return TransactionRecord("out", id, {})


def metadata(checkpoint: int, transactions: Sequence[TransactionRecord] = ()) -> CheckpointMetadata:
    return CheckpointMetadata(
        job="job",
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
        transactions=list(transactions),
    )


def complete(ledger: Ledger, checkpoint: int, *fresh: str) -> tuple[int, ...]:
    """Complete a checkpoint that names what is new and what is left over; returns which go."""
    ledger.triggered(checkpoint)
    carried = ledger.carry_over(map(record, fresh))
    ledger.completed(metadata(checkpoint, carried))
    ledger.check()
    return swept(ledger).checkpoints


def swept(ledger: Ledger) -> Deletable:
    """What storage is to delete, and deletes."""
    gone = ledger.sweep()
    ledger.withdrawn(gone, gone)
    return ledger.deletable()


def open_ids(ledger: Ledger) -> list[str]:
    return [t.id for t in ledger.uncommitted]


def test_the_newest_checkpoint_is_where_an_attempt_starts() -> None:
    ledger = Ledger(None, retain=2)
    assert ledger.newest is None
    complete(ledger, 1)
    complete(ledger, 2)
    assert ledger.newest == metadata(2)


def test_retention_keeps_the_newest_and_names_the_rest() -> None:
    ledger = Ledger(None, retain=2)
    assert [complete(ledger, n) for n in (1, 2, 3, 5)] == [(), (), (1,), (2,)]


def test_the_restored_checkpoint_is_subsumed_like_any_other() -> None:
    ledger = Ledger(metadata(4), retain=1)
    assert complete(ledger, 5) == (4,)


def test_what_was_given_up_is_deleted_with_the_next_completion() -> None:
    ledger = Ledger(None, retain=1)
    for number in (1, 2):
        ledger.triggered(number)
        ledger.given_up(number)
    assert swept(ledger).checkpoints == (), "the next one may name what was written for them"
    assert complete(ledger, 3) == (1, 2)
    assert complete(ledger, 4) == (1, 2, 3), "an upload may have been under way still"
    assert complete(ledger, 5) == (4,)


def test_nothing_is_deleted_while_a_checkpoint_is_under_way_that_may_refer_to_it() -> None:
    ledger = Ledger(None, retain=1)
    complete(ledger, 1)
    for number in (2, 3):
        ledger.triggered(number)
    ledger.completed(metadata(2))
    assert swept(ledger).checkpoints == ()
    ledger.triggered(4)
    ledger.completed(metadata(3))
    assert swept(ledger).checkpoints == (1,), "4 was triggered after 2 had taken its place"
    assert swept(ledger).checkpoints == (), "each is named once"


def test_what_a_job_was_started_from_is_its_own_only_if_it_is_a_checkpoint_of_its_directory() -> (
    None
):
    savepoint = msgspec.structs.replace(metadata(4), savepoint=True)
    assert complete(Ledger(savepoint, retain=1), 5) == ()
    assert complete(Ledger(metadata(4), retain=1, foreign=True), 5) == ()


def referring(checkpoint: int, path: str) -> CheckpointMetadata:
    """A checkpoint with one in-flight record, stored at `path`."""
    buffer = BufferHandle(path, 8, 100, "0" * 16, 1, 0, 1)
    handle = ChannelStateHandle(0, 0, 0, "input", 0, [buffer], ended=False)
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], [handle])
    return msgspec.structs.replace(metadata(checkpoint), subtasks=[subtask])


def test_a_file_outlives_its_checkpoint_as_long_as_another_refers_to_it() -> None:
    path = "chk-1/worker-0-e1.segment"
    ledger = Ledger(None, retain=1)
    for number in (1, 2):
        ledger.triggered(number)
        ledger.completed(referring(number, path))
    assert swept(ledger) == Deletable((1,), frozenset({path}), ())
    ledger.triggered(3)
    ledger.completed(metadata(3))
    assert swept(ledger) == Deletable((2,), frozenset(), (path,))


def test_a_transaction_is_open_from_completion_to_confirmation() -> None:
    ledger = Ledger(None, retain=1)
    complete(ledger, 1, "b", "a")
    assert (open_ids(ledger), ledger.committing) == (["b", "a"], True), "as pre-committed"
    ledger.committed(1)
    assert (open_ids(ledger), ledger.committing) == ([], False)


def test_what_is_not_confirmed_rides_with_the_next_checkpoint() -> None:
    ledger = Ledger(None, retain=1)
    complete(ledger, 1, "a")
    complete(ledger, 2, "b")
    assert open_ids(ledger) == ["a", "b"]
    ledger.committed(1)
    assert open_ids(ledger) == ["b"]
    assert ledger.committing
    ledger.committed(2)
    assert (open_ids(ledger), ledger.committing) == ([], False)


def test_a_repeat_of_what_is_confirmed_is_not_committed_twice() -> None:
    ledger = Ledger(None, retain=1)
    complete(ledger, 1, "a")
    ledger.committed(1)
    complete(ledger, 2, "a", "b")
    assert open_ids(ledger) == ["b"]


def test_a_commit_confirmed_while_the_next_metadata_is_written_is_not_forgotten() -> None:
    ledger = Ledger(None, retain=1)
    complete(ledger, 1, "a")
    ledger.triggered(2)
    carried = ledger.carry_over([record("b")])
    ledger.committed(1)
    ledger.completed(metadata(2, carried))
    ledger.check()
    assert open_ids(ledger) == ["b"]


def test_a_commit_that_failed_stays_open_until_a_recovery_repeats_it() -> None:
    ledger = Ledger(None, retain=1)
    complete(ledger, 1, "a")
    ledger.commit_failed(1)
    assert (open_ids(ledger), ledger.committing) == (["a"], False)
    ledger.commit_failed(None)
    ledger.all_committed()
    assert open_ids(ledger) == []


def test_a_restored_checkpoints_transactions_are_committed_again() -> None:
    ledger = Ledger(metadata(4, [record("a")]), retain=1)
    assert open_ids(ledger) == ["a"]
    assert not ledger.committing


def test_falling_back_to_an_older_checkpoint_forgets_the_newer() -> None:
    ledger = Ledger(None, retain=3)
    for number in (1, 2):
        complete(ledger, number)
        ledger.committed(number)
    ledger.restored(metadata(1, [record("a")]))
    assert ledger.newest == metadata(1, [record("a")])
    assert open_ids(ledger) == ["a"]
    ledger.restored(None)
    assert open_ids(ledger) == []


def test_an_older_checkpoint_cannot_complete_later() -> None:
    ledger = Ledger(None, retain=1)
    ledger.triggered(1)
    complete(ledger, 2)
    with pytest.raises(AssertionError, match="an older one came later"):
        ledger.completed(metadata(1))


def test_the_state_can_be_read_as_text() -> None:
    ledger = Ledger(None, retain=2)
    complete(ledger, 1, "a")
    assert ledger.describe() == "complete=[1] uncommitted=1"


@given(st.lists(st.sampled_from(["complete", "confirm", "fail"]), max_size=30))
def test_every_transaction_is_named_by_each_checkpoint_until_it_is_confirmed(
    script: list[str],
) -> None:
    """So a restore from any checkpoint commits what nobody has confirmed, and never loses one."""
    ledger = Ledger(None, retain=2)
    number, unconfirmed = 0, set[str]()
    for step in script:
        if step == "complete":
            number += 1
            unconfirmed.add(f"t{number:02d}")
            complete(ledger, number, f"t{number:02d}")
        elif number and step == "confirm":
            ledger.committed(number)
            unconfirmed.clear()
        elif number:
            ledger.commit_failed(number)
        assert open_ids(ledger) == sorted(unconfirmed)


def test_the_metadata_says_how_edges_deal_out_records() -> None:
    numbers = hr.read.sequence(10, keys=2, name="numbers")
    totals = (
        numbers.rebalance()
        .filter(pc.field("key") > 0)
        .key_by("key")
        .aggregate(n=hr.count(), name="totals")
    )
    plan = hr.Job("job", totals.write.collect(name="out"), parallelism=2).plan()
    pending = PendingCheckpoint(1, 0, False, None, CheckpointMode.ALIGNED)
    found = metadata_of(plan, pending, [], epoch=1, mode="aligned", now_ns=0)
    assert [(e.partitioning, e.columns) for e in found.edges] == [
        ("rebalance", []),
        ("hash", ["key"]),
    ]


# --- claims -----------------------------------------------------------------------------------------------------------

CLAIM = Elsewhere(
    number=4, directory="/old", job="old", checkpoint=9, savepoint=False, claimed=True
)


def replaying(checkpoint: int) -> CheckpointMetadata:
    """A checkpoint in whose cut something of the attempt before was still to be read."""
    buffer = BufferHandle("chk-5/worker-0-e1.segment", 64, 10, "a" * 16, 1, 0, 1)
    left = ChannelStateHandle(0, 0, 0, "replay", 0, [buffer], ended=False)
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], [left])
    return msgspec.structs.replace(metadata(checkpoint), subtasks=[subtask])


def with_claim(*, retain: int = 1) -> Ledger:
    claimed = metadata(9)
    ledger = Ledger(claimed, retain, foreign=True, claim=CLAIM)
    ledger.started(claimed)
    return ledger


def completing(ledger: Ledger, it: CheckpointMetadata) -> list[Elsewhere]:
    ledger.triggered(it.checkpoint)
    ledger.completed(it)
    ledger.check()
    ledger.sweep()
    return ledger.subsumed_claims()


def test_a_claim_is_retained_like_a_checkpoint_and_then_released() -> None:
    ledger = with_claim(retain=2)
    assert completing(ledger, metadata(5)) == []
    assert completing(ledger, metadata(6)) == [CLAIM]
    assert completing(ledger, metadata(7)) == []


def test_a_claim_that_is_subsumed_is_kept_while_it_is_replayed() -> None:
    ledger = with_claim()
    assert completing(ledger, replaying(5)) == []
    assert completing(ledger, replaying(6)) == []
    assert completing(ledger, metadata(7)) == [CLAIM]


def test_a_claim_is_read_no_more_when_an_attempt_starts_from_an_own_checkpoint() -> None:
    ledger = with_claim()
    assert completing(ledger, replaying(5)) == []
    ledger.started(ledger.newest)
    assert completing(ledger, replaying(6)) == [CLAIM]


def test_a_claim_that_is_subsumed_goes_at_the_end_of_the_job() -> None:
    ledger = with_claim()
    assert completing(ledger, replaying(5)) == []
    ledger.end()
    ledger.sweep()
    assert ledger.subsumed_claims() == [CLAIM]


def test_a_claim_waits_for_checkpoints_under_way_which_may_copy_from_it() -> None:
    ledger = with_claim()
    ledger.triggered(5, SavepointOrder())
    assert completing(ledger, metadata(6)) == []
    ledger.saved(5)
    assert completing(ledger, metadata(7)) == [CLAIM]


def test_what_was_not_released_is_named_again() -> None:
    ledger = with_claim()
    assert completing(ledger, metadata(5)) == [CLAIM]
    ledger.not_released(CLAIM)
    assert completing(ledger, metadata(6)) == [CLAIM]


def test_a_later_run_retains_and_releases_what_an_earlier_one_has_claimed() -> None:
    left = Leftovers(older=(metadata(3),), claims=(CLAIM,))
    ledger = Ledger(metadata(5), 3, left=left)
    assert completing(ledger, metadata(6)) == []
    assert completing(ledger, metadata(7)) == [CLAIM]
