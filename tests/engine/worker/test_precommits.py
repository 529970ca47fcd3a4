"""Which transactions a cut names, and which are settled when its checkpoint is complete."""

from __future__ import annotations

from headrace.engine.contract.operators import Transaction
from headrace.engine.worker.precommits import Precommits


def add(subject: Precommits, id: str) -> None:
    subject.add([("out", Transaction(id, {}))])


def named(subject: Precommits, checkpoint: int) -> list[str]:
    return [transaction.id for _, transaction in subject.cut(checkpoint)]


def test_a_cut_names_all_that_is_open() -> None:
    subject = Precommits()
    add(subject, "a")
    assert named(subject, 1) == ["a"]
    add(subject, "b")
    assert named(subject, 2) == ["a", "b"]
    subject.completed(1)
    assert named(subject, 3) == ["b"]


def test_what_was_pre_committed_after_the_cut_of_a_higher_number_stays_open() -> None:
    """An unaligned checkpoint overtakes an aligned one of a lower number."""
    subject = Precommits()
    add(subject, "a")
    assert named(subject, 2) == ["a"]
    add(subject, "b")
    assert named(subject, 1) == ["a", "b"]
    subject.completed(2)
    assert named(subject, 3) == ["b"]


def test_a_checkpoint_without_a_cut_here_settles_nothing() -> None:
    subject = Precommits()
    add(subject, "a")
    subject.completed(1)
    assert named(subject, 2) == ["a"]
