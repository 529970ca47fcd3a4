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
    committer(system).commit([Transaction("a", {})])
    committer(system).commit([Transaction("a", {})])
    assert system.rows("out") == [(0, (1,))]


def test_a_recovery_commits_what_it_is_given_and_aborts_the_rest() -> None:
    system = prepared("a", "b")
    committer(system).recover([Transaction("a", {})])
    assert system.visible == ["a"]
    assert system.open("out") == []


def test_what_was_aborted_cannot_be_committed_in_silence() -> None:
    system = prepared("a")
    system.abort("a")
    with pytest.raises(CommitLost, match="aborted"):
        committer(system).commit([Transaction("a", {})])


def test_a_zombie_cannot_write_to_what_a_recovery_aborted() -> None:
    system = SinkSystem()
    system.begin("a", "out", 0)
    committer(system).recover([])
    with pytest.raises(RuntimeError, match="aborted"):
        system.write("a", [(1,)])
