"""Transactions: open from the checkpoint that names them until their commit is confirmed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.engine.coordinator.coordinator_events import CommitTransactions, RecoverSinks
from headrace.engine.coordinator.transactions import Transactions
from headrace.recovery.history import EpochStart
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord

from .driven_coordinator import MS, RULES, a_checkpoint


def record(id: str, checkpoint: int = 0) -> TransactionRecord:
    return TransactionRecord("out", id, {}, checkpoint=checkpoint)


def metadata(checkpoint: int, transactions: Sequence[TransactionRecord] = ()) -> CheckpointMetadata:
    return replace(a_checkpoint(checkpoint), transactions=list(transactions))


def complete(transactions: Transactions, checkpoint: int, *fresh: str) -> None:
    """Complete a checkpoint that names what is new and what is left over."""
    carried = transactions.carry_over(checkpoint, map(record, fresh))
    ordered = transactions.commit(metadata(checkpoint, carried))
    assert ordered == [CommitTransactions(checkpoint, tuple(carried))]
    transactions.check()


def open_ids(transactions: Transactions) -> list[str]:
    return [t.id for t in transactions.uncommitted]


def test_a_transaction_is_open_from_completion_to_confirmation() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "b", "a")
    assert (open_ids(transactions), transactions.committing) == (["b", "a"], True), (
        "as pre-committed"
    )
    transactions.committed(1)
    assert (open_ids(transactions), transactions.committing) == ([], False)


def test_what_is_not_confirmed_rides_with_the_next_checkpoint() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    complete(transactions, 2, "b")
    assert open_ids(transactions) == ["a", "b"]
    transactions.committed(1)
    assert open_ids(transactions) == ["b"]
    assert transactions.committing
    transactions.committed(2)
    assert (open_ids(transactions), transactions.committing) == ([], False)


def test_a_repeat_of_what_is_confirmed_is_not_committed_twice() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    transactions.committed(1)
    complete(transactions, 2, "a", "b")
    assert open_ids(transactions) == ["b"]


def test_a_commit_confirmed_while_the_next_metadata_is_written_is_not_forgotten() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    carried = transactions.carry_over(2, [record("b")])
    transactions.committed(1)
    transactions.commit(metadata(2, carried))
    transactions.check()
    assert open_ids(transactions) == ["b"]


def test_a_commit_that_failed_stays_open_until_a_recovery_repeats_it() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    assert transactions.failed(1, 0) == 10 * MS
    assert (open_ids(transactions), transactions.committing) == (["a"], False)
    transactions.recovered()
    assert open_ids(transactions) == []


def test_a_restored_checkpoints_transactions_are_committed_again() -> None:
    transactions = Transactions(metadata(4, [record("a")]), RULES.restarts)
    assert open_ids(transactions) == ["a"]
    assert not transactions.committing


def test_falling_back_to_an_older_checkpoint_forgets_the_newer() -> None:
    transactions = Transactions(None, RULES.restarts)
    for number in (1, 2):
        complete(transactions, number)
        transactions.committed(number)
    transactions.restored(metadata(1, [record("a")]))
    assert open_ids(transactions) == ["a"]
    transactions.restored(None)
    assert open_ids(transactions) == []


@given(st.lists(st.sampled_from(["complete", "confirm", "fail"]), max_size=30))
def test_every_transaction_is_named_by_each_checkpoint_until_it_is_confirmed(
    script: list[str],
) -> None:
    """So a restore from any checkpoint commits what nobody has confirmed, and never loses one."""
    transactions = Transactions(None, RULES.restarts)
    number, unconfirmed = 0, set[str]()
    for step in script:
        if step == "complete":
            number += 1
            unconfirmed.add(f"t{number:02d}")
            complete(transactions, number, f"t{number:02d}")
        elif number and step == "confirm":
            transactions.committed(number)
            unconfirmed.clear()
        elif number:
            transactions.failed(number, 0)
        assert open_ids(transactions) == sorted(unconfirmed)


def test_a_recovery_of_the_sinks_commits_what_is_open() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    start = EpochStart(7, 1, 6)
    assert transactions.recover(start) == [RecoverSinks(7, (record("a", 1),), start, 1)]


def test_the_last_commit_is_repeated_as_far_as_it_is_open() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    complete(transactions, 2, "b")
    transactions.committed(1)
    transactions.failed(2, 0)
    assert transactions.again(10 * MS - 1) == []
    assert transactions.again(10 * MS) == [CommitTransactions(2, (record("b", 2),))]
    assert transactions.committing
    transactions.committed(2)
    assert (open_ids(transactions), transactions.committing) == ([], False)


def test_a_recovery_that_fails_is_repeated_with_what_is_open() -> None:
    transactions = Transactions(metadata(4, [record("a")]), RULES.restarts)
    start = EpochStart(7, 4, 6)
    transactions.recover(start)
    assert transactions.failed(None, 5) == 10 * MS
    assert transactions.again(5 + 10 * MS) == [RecoverSinks(7, (record("a", 4),), start, 4)]
    assert transactions.again_at_ns is None


def test_failures_in_a_row_wait_longer_and_are_counted_until_one_works() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    assert [transactions.failed(1, 0) for _ in range(4)] == [10 * MS, 20 * MS, 40 * MS, None]
    assert transactions.again_at_ns == RULES.restarts.backoff_max_ns, "it may be repeated even so"
    transactions.committed(1)
    complete(transactions, 2, "b")
    assert transactions.failed(2, 0) == 10 * MS


def test_a_failure_beside_a_newer_commit_is_left_to_that_one() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    complete(transactions, 2, "b")
    assert transactions.failed(1, 0) == 0
    assert transactions.again_at_ns is None


def test_the_state_can_be_read_as_text() -> None:
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    assert transactions.describe() == "uncommitted=1"


def stamps(transactions: Transactions) -> dict[str, int]:
    return {t.id: t.checkpoint for t in transactions.uncommitted}


def test_a_transaction_keeps_the_number_of_the_first_complete_checkpoint_that_names_it() -> None:
    """Its subtask names it until it hears of the first one; then it is left over."""
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 1, "a")
    complete(transactions, 2, "a", "b")
    complete(transactions, 4, "b", "c")
    assert stamps(transactions) == {"a": 1, "b": 2, "c": 4}


def test_a_checkpoint_that_never_was_complete_leaves_no_number_behind() -> None:
    transactions = Transactions(None, RULES.restarts)
    transactions.carry_over(1, [record("a")])
    complete(transactions, 2, "a")
    assert stamps(transactions) == {"a": 2}


def test_restored_transactions_keep_their_numbers() -> None:
    restored = metadata(9, [record("a", 7), record("b", 9)])
    transactions = Transactions(restored, RULES.restarts)
    complete(transactions, 10, "c")
    assert stamps(transactions) == {"a": 7, "b": 9, "c": 10}


def test_transactions_of_early_versions_get_the_number_of_the_restored_checkpoint() -> None:
    """Zero would look like applied to a sink that has applied nothing yet."""
    transactions = Transactions(metadata(4, [record("a"), record("b", 3)]), RULES.restarts)
    assert stamps(transactions) == {"a": 4, "b": 3}


def test_no_checkpoint_commits_after_a_newer_one() -> None:
    """Its transactions would look like applied."""
    transactions = Transactions(None, RULES.restarts)
    complete(transactions, 2, "a")
    with pytest.raises(AssertionError, match="chk-1 commits after chk-2"):
        transactions.commit(metadata(1, [record("b", 1)]))


def test_after_a_rollback_to_an_older_checkpoint_numbers_go_on_above_the_damaged_one() -> None:
    transactions = Transactions(None, RULES.restarts)
    for number in (1, 2):
        complete(transactions, number, f"t{number}")
        transactions.committed(number)
    transactions.restored(metadata(1, [record("a", 1)]))
    complete(transactions, 3, "c")
    assert stamps(transactions) == {"a": 1, "c": 3}
