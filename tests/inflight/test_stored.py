"""Data of checkpoints: the newest that is complete may be named, or a newer one that was given
up.
"""

from __future__ import annotations

from headrace.inflight.stored import Stored


def test_data_counts_when_its_checkpoint_is_complete() -> None:
    subject: Stored[str] = Stored()
    assert subject.newest is None
    subject.stored(1, "one")
    assert subject.newest is None
    subject.confirmed(1)
    assert subject.newest == "one"
    subject.stored(3, "three")
    assert subject.newest == "one"
    subject.confirmed(3)
    assert subject.newest == "three"


def test_a_complete_checkpoint_without_data_here_ends_older_data() -> None:
    subject: Stored[str] = Stored()
    subject.stored(1, "one")
    subject.confirmed(1)
    subject.confirmed(2)
    assert subject.newest is None


def test_data_of_a_given_up_checkpoint_counts_until_a_newer_one_is_complete() -> None:
    subject: Stored[str] = Stored()
    subject.stored(1, "one")
    subject.confirmed(1)
    subject.given_up(2)
    assert subject.newest == "one"
    subject.stored(2, "two")
    assert subject.newest == "two"
    subject.stored(3, "three")
    subject.given_up(3)
    assert subject.newest == "three"
    subject.stored(4, "four")
    subject.confirmed(4)
    assert subject.newest == "four"


def test_data_that_comes_behind_a_newer_complete_checkpoint_is_forgotten() -> None:
    subject: Stored[str] = Stored()
    subject.given_up(1)
    subject.stored(2, "two")
    subject.confirmed(2)
    subject.stored(1, "one")
    assert subject.newest == "two"
