"""The outside system keeps its word, and its committer repeats what is not certain."""

from __future__ import annotations

import pytest

from headrace.engine.contract.errors import CommitLost
from headrace.engine.contract.operators import Transaction
from headrace.engine.simulation.sink import SinkSystem, SystemCommitter


def prepared(*ids: str) -> SinkSystem:
    system = SinkSystem()
    for id in ids:
        system.begin(id, "out", 0)
        system.write(id, [(1,)])
        system.prepare(id)
    return system


def committer(system: SinkSystem) -> SystemCommitter:
    return SystemCommitter("out", lambda method, *arguments: getattr(system, method)(*arguments))


def test_a_commit_shows_the_rows_once_however_often_it_is_repeated() -> None:
    system = prepared("a")
    committer(system).commit(7, [Transaction("a", {})])
    committer(system).commit(7, [Transaction("a", {})])
    assert system.rows("out") == [(0, (1,))]


def test_a_recovery_commits_what_it_is_given_and_aborts_the_rest() -> None:
    system = prepared("a", "b")
    committer(system).recover(7, [Transaction("a", {})])
    assert system.visible == ["a"]
    assert system.open("out") == []


def test_what_was_aborted_cannot_be_committed_in_silence() -> None:
    system = prepared("a")
    system.abort("a")
    with pytest.raises(CommitLost, match="aborted"):
        committer(system).commit(7, [Transaction("a", {})])


def test_a_zombie_cannot_write_to_what_a_recovery_aborted() -> None:
    system = SinkSystem()
    system.begin("a", "out", 0)
    committer(system).recover(0, [])
    with pytest.raises(RuntimeError, match="aborted"):
        system.write("a", [(1,)])


# --- tokens ---------------------------------------------------------------------------------------


def with_tokens(*ids: str) -> tuple[SinkSystem, SystemCommitter]:
    system = prepared(*ids)
    system.has_tokens = True
    return system, SystemCommitter(
        "out",
        lambda method, *arguments: getattr(system, method)(*arguments),
        has_tokens=True,
    )


def stamped(id: str, checkpoint: int, run: str = "r") -> Transaction:
    return Transaction(id, {}, run, checkpoint)


def test_a_system_with_tokens_applies_each_checkpoint_of_a_run_once() -> None:
    system, subject = with_tokens("a", "b", "c")
    subject.commit(1, [stamped("a", 1)])
    subject.commit(2, [stamped("a", 1), stamped("b", 2), stamped("c", 2)])
    subject.commit(1, [stamped("a", 1)])
    assert system.visible == ["a", "b", "c"]


def test_a_stamp_below_the_token_is_a_loss() -> None:
    system, subject = with_tokens("a", "b")
    subject.commit(2, [stamped("a", 2)])
    subject.commit(3, [stamped("b", 1)])
    assert system.visible == ["a"]


def test_a_stamp_that_changed_doubles_rows() -> None:
    system, subject = with_tokens("a")
    subject.commit(1, [stamped("a", 1)])
    subject.commit(2, [stamped("a", 2)])
    assert system.rows("out") == [(0, (1,))] * 2


def test_every_run_has_a_token_of_its_own() -> None:
    system, subject = with_tokens("a", "b")
    subject.commit(9, [stamped("a", 9, "one")])
    subject.commit(1, [stamped("b", 1, "other")])
    assert system.visible == ["a", "b"]


def test_a_system_with_tokens_refuses_what_is_lost_and_applies_nothing_beside_it() -> None:
    system, subject = with_tokens("a", "b")
    system.abort("b")
    with pytest.raises(CommitLost, match="b cannot be committed: it is aborted"):
        subject.commit(1, [stamped("a", 1), stamped("b", 1)])
    assert system.visible == []
