"""Workers: one member each, always the newest incarnation; how long missing ones may take.

The tests of a coordinator (`test_coordinator.py`) cover what follows for an attempt.
"""

from __future__ import annotations

import pytest

from headrace.engine.contract.messages import PeerAddress, Pulse, Register, Start
from headrace.engine.coordinator.coordinator_events import ConnectionLost, WorkerExited
from headrace.engine.coordinator.workers import Member, Workers

from .driven_coordinator import RULES, snapshots, texts


class Subject:
    """Two workers are expected; worker w, incarnation i has connection 10 * i + w."""

    def __init__(self) -> None:
        self.workers = Workers([[0, 1], [2]], RULES)

    def register(self, worker: int, incarnation: int = 0, now_ns: int = 0) -> bool:
        """Whether the worker was let in; whoever has its place must have left."""
        message = Register(worker, incarnation, f"host{worker}", 1000 + worker, 1)
        admitted = self.workers.admits(message)
        if admitted:
            self.workers.register(10 * incarnation + worker, message, now_ns)
        return admitted

    def make_place(self, worker: int, incarnation: int) -> list[str]:
        message = Register(worker, incarnation, f"host{worker}", 1000 + worker, 1)
        return texts(self.workers.make_place(message, 0))

    def exited(self, worker: int, incarnation: int) -> list[str]:
        return texts(self.workers.exited(WorkerExited(worker, incarnation, "exit code 1"), 0))

    def lost(self, connection: int) -> list[str]:
        return texts(self.workers.disconnected(ConnectionLost(connection, "reset"), 0))

    def member(self, connection: int) -> Member:
        member = self.workers.of(connection)
        assert member is not None
        return member


# --- members --------------------------------------------------------------------------------------


def test_workers_are_complete_when_everybody_is_there() -> None:
    subject = Subject()
    assert (subject.workers.complete, subject.workers.missing) == (False, [0, 1])
    assert subject.register(1)
    assert (subject.workers.complete, subject.workers.missing) == (False, [0])
    assert subject.register(0)
    assert (subject.workers.complete, subject.workers.missing) == (True, [])
    assert subject.workers.numbers == [0, 1]


def test_a_member_has_the_slots_that_the_job_gave_it() -> None:
    subject = Subject()
    subject.register(0)
    assert subject.member(0).address == PeerAddress(0, "host0", 1000, [0, 1])
    assert subject.workers.of(8) is None


def test_a_message_to_all_goes_to_every_member_by_number() -> None:
    subject = Subject()
    subject.register(1)
    subject.register(0, 3)
    assert texts(subject.workers.send_all(Start(1))) == ["Start to 30", "Start to 1"]


def test_every_member_gets_the_snapshots_of_its_slots_and_all_addresses() -> None:
    subject = Subject()
    for worker in (1, 0):
        subject.register(worker)
    held = [*snapshots(2), *snapshots(1)]
    first, second = subject.workers.shares(held)
    assert (first[0], first[2]) == (0, snapshots(1))
    assert (second[0], second[2]) == (1, snapshots(2))
    assert [peer.worker for peer in first[1]] == [0, 1]


@pytest.mark.parametrize("worker", [-1, 2])
def test_an_unknown_worker_is_refused(worker: int) -> None:
    assert not Subject().register(worker)


@pytest.mark.parametrize("incarnation", [0, 2, 3])
def test_an_incarnation_that_is_not_newer_than_the_newest_is_a_zombie(incarnation: int) -> None:
    subject = Subject()
    subject.register(0, 3)
    assert not subject.register(0, incarnation)
    subject.lost(30)
    assert not subject.register(0, incarnation), "remembered beyond its removal"
    assert subject.register(0, 4)


def test_taking_a_place_that_is_not_free_is_a_bug() -> None:
    subject = Subject()
    subject.register(0)
    with pytest.raises(AssertionError, match="make place first"):
        subject.register(0, 1)


def test_a_lost_member_is_forgotten_with_its_connection() -> None:
    subject = Subject()
    subject.register(0)
    assert subject.lost(0) == ["replace 0", "attempt broken: worker 0 was lost: reset"]
    assert subject.workers.of(0) is None
    assert subject.workers.numbers == []
    assert subject.lost(0) == []


# --- time -----------------------------------------------------------------------------------------


def test_silence_is_measured_from_the_last_sign() -> None:
    subject = Subject()
    assert subject.workers.next_deadline_ns() is None
    subject.register(0, now_ns=10)
    subject.register(1, now_ns=30)
    timeout_ns = RULES.heartbeat_timeout_ns
    assert subject.workers.next_deadline_ns() == 10 + timeout_ns + 1
    assert subject.workers.silent(10 + timeout_ns) == []
    assert [member.worker for member in subject.workers.silent(11 + timeout_ns)] == [0]
    subject.member(0).seen_ns = 40
    assert subject.workers.next_deadline_ns() == 30 + timeout_ns + 1


def test_a_pulse_keeps_a_silent_member_and_its_silence_is_told_once() -> None:
    subject = Subject()
    subject.register(0, 1)
    half_ns = RULES.heartbeat_timeout_ns // 2
    pulse = Pulse(0, 1, [])
    assert subject.workers.pulse(pulse, half_ns - 1) is None
    assert subject.workers.pulse(pulse, half_ns) == half_ns
    assert subject.workers.pulse(pulse, 3 * half_ns) is None
    assert subject.workers.silent(5 * half_ns) == []
    assert [member.worker for member in subject.workers.silent(5 * half_ns + 1)] == [0]
    subject.member(10).hear(5 * half_ns)
    assert subject.workers.pulse(pulse, 6 * half_ns) == half_ns


def test_a_pulse_of_another_incarnation_is_no_sign_of_life() -> None:
    subject = Subject()
    subject.register(0, 1)
    timeout_ns = RULES.heartbeat_timeout_ns
    for stranger in (Pulse(0, 0, []), Pulse(0, 2, []), Pulse(1, 1, []), Pulse(7, 0, [])):
        assert subject.workers.pulse(stranger, timeout_ns) is None
    assert [member.worker for member in subject.workers.silent(timeout_ns + 1)] == [0]


def test_missing_workers_fail_the_job_once_when_their_time_is_over() -> None:
    workers = Subject().workers
    workers.await_all(10)
    deadline_ns = 10 + RULES.register_timeout_ns
    assert workers.next_deadline_ns() == deadline_ns
    assert workers.overdue(deadline_ns - 1) == []
    text = "job broken: workers 0, 1 did not start in time"
    assert texts(workers.overdue(deadline_ns)) == [text]
    assert workers.overdue(deadline_ns) == []
    assert workers.next_deadline_ns() is None


def test_nobody_is_overdue_where_nobody_is_waited_for() -> None:
    workers = Subject().workers
    workers.await_all(0)
    workers.await_nobody()
    assert workers.overdue(10**18) == []


def test_nobody_is_overdue_when_all_are_there() -> None:
    subject = Subject()
    subject.workers.await_all(0)
    for worker in (0, 1):
        subject.register(worker)
    assert subject.workers.overdue(10**18) == []


# --- losses and successors ------------------------------------------------------------------------


def test_a_lost_member_is_replaced_and_its_successor_has_the_whole_time() -> None:
    subject = Subject()
    subject.register(0)
    broken = "attempt broken: worker 0 was lost: exit code 1"
    assert subject.exited(0, 0) == ["replace 0", broken]
    assert subject.workers.missing == [0, 1]
    assert subject.workers.next_deadline_ns() == RULES.register_timeout_ns


def test_an_older_incarnation_is_sent_away_and_nobody_else_asked_for() -> None:
    subject = Subject()
    subject.register(0)
    broken = "attempt broken: worker 0 was lost: incarnation 1 took its place"
    assert subject.make_place(0, 1) == ["Shutdown to 0", "close 0", broken]
    assert subject.register(0, 1)


def test_a_place_that_is_free_costs_nothing() -> None:
    assert Subject().make_place(0, 1) == []


def test_the_exit_of_an_older_incarnation_costs_nothing() -> None:
    subject = Subject()
    subject.register(0, 1)
    assert subject.exited(0, 0) == []
    subject.lost(10)
    assert subject.exited(0, 1) == [], "its connection told before"
    assert subject.exited(0, 2) == ["replace 0"], "it never registered"


def test_workers_that_never_come_end_the_job_unless_somebody_comes_in_between() -> None:
    subject = Subject()
    most = RULES.restarts.attempts_max
    for incarnation in range(most):
        assert subject.exited(0, incarnation) == ["replace 0"]
    subject.register(1)
    for incarnation in range(most, 2 * most):
        assert subject.exited(0, incarnation) == ["replace 0"]
    text = "job broken: worker 0 ended before it registered: exit code 1"
    assert subject.exited(0, 2 * most) == [text]
