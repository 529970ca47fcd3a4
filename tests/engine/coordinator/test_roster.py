"""The roster: one member per worker, always its newest incarnation, and nobody who is not expected."""

from __future__ import annotations

import pytest

from headrace.engine.contract.messages import PeerAddress, Register
from headrace.engine.coordinator.roster import Roster


def register(
    roster: Roster, worker: int, incarnation: int, connection: int, now_ns: int = 0
) -> bool:
    message = Register(worker, incarnation, f"host{worker}", 1000 + worker, 1)
    return roster.register(connection, message, now_ns)


def of_two() -> Roster:
    return Roster([[0, 1], [2]])


def test_a_roster_is_complete_when_everybody_is_there() -> None:
    roster = of_two()
    assert (roster.complete, roster.missing) == (False, [0, 1])
    assert register(roster, 1, 0, connection=7)
    assert (roster.complete, roster.missing) == (False, [0])
    assert register(roster, 0, 0, connection=8)
    assert (roster.complete, roster.missing) == (True, [])
    assert [member.worker for member in roster.members] == [0, 1]


def test_a_member_has_the_slots_that_the_job_gave_it() -> None:
    roster = of_two()
    register(roster, 0, 0, connection=7)
    member = roster.of(7)
    assert member is not None
    assert member.address == PeerAddress(0, "host0", 1000, [0, 1])
    assert roster.member(0) is member
    assert roster.of(8) is None


@pytest.mark.parametrize("worker", [-1, 2])
def test_an_unknown_worker_is_refused(worker: int) -> None:
    assert not register(of_two(), worker, 0, connection=7)


@pytest.mark.parametrize("incarnation", [0, 2, 3])
def test_an_incarnation_that_is_not_newer_than_the_newest_is_a_zombie(incarnation: int) -> None:
    roster = of_two()
    register(roster, 0, 3, connection=7)
    assert not register(roster, 0, incarnation, connection=8)
    roster.remove(0)
    assert not register(roster, 0, incarnation, connection=9), "remembered beyond its removal"
    assert register(roster, 0, 4, connection=10)


def test_taking_a_place_that_is_not_free_is_a_bug() -> None:
    roster = of_two()
    register(roster, 0, 0, connection=7)
    with pytest.raises(AssertionError, match="remove the older incarnation first"):
        register(roster, 0, 1, connection=8)


def test_a_removed_member_is_forgotten_with_its_connection() -> None:
    roster = of_two()
    register(roster, 0, 0, connection=7)
    removed = roster.remove(0)
    assert removed is not None
    assert removed.connection == 7
    assert (roster.remove(0), roster.of(7), roster.member(0)) == (None, None, None)


def test_whether_an_incarnation_ever_registered_is_known() -> None:
    roster = of_two()
    assert roster.never_seen(0, 0)
    register(roster, 0, 1, connection=7)
    roster.remove(0)
    assert [roster.never_seen(0, n) for n in (0, 1, 2)] == [False, False, True]


def test_silence_is_measured_from_the_last_sign() -> None:
    roster = of_two()
    assert roster.oldest_sign_ns is None
    register(roster, 0, 0, connection=7, now_ns=10)
    register(roster, 1, 0, connection=8, now_ns=30)
    assert roster.oldest_sign_ns == 10
    assert [m.worker for m in roster.silent(10)] == []
    assert [m.worker for m in roster.silent(11)] == [0]
    member = roster.of(7)
    assert member is not None
    member.seen_ns = 40
    assert roster.oldest_sign_ns == 30
