"""Membership: what losses mean, who is asked for, and until when; `test_coordinator.py` covers what a coordinator makes of it."""

from __future__ import annotations

from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.membership import Loss, Membership
from headrace.engine.coordinator.roster import Roster

from .driven_coordinator import RULES, noted


class Subject:
    """Two workers are expected; effects as text."""

    def __init__(self) -> None:
        self.roster = Roster([[0], [1]])
        self.members = Membership(self.roster, RULES)
        self.effects: list[d.CoordinatorEffect] = []

    def told(self) -> list[str]:
        texts = [noted(effect) for effect in self.effects]
        self.effects = []
        return [text for text in texts if text is not None]

    def register(self, worker: int, incarnation: int = 0, now_ns: int = 0) -> bool:
        message = m.Register(worker, incarnation, "host", 1000, 1)
        return self.members.register(10 * incarnation + worker, message, now_ns, self.effects)

    def exited(self, worker: int, incarnation: int) -> Loss:
        event = d.WorkerExited(worker, incarnation, "exit code 1")
        return self.members.exited(event, 0, self.effects)


def test_those_that_are_missing_are_told_once_when_their_time_is_over() -> None:
    subject = Subject()
    subject.members.await_all(10)
    deadline_ns = 10 + RULES.register_timeout_ns
    assert subject.members.next_deadline_ns() == deadline_ns
    assert subject.members.overdue(deadline_ns - 1) == []
    assert subject.members.overdue(deadline_ns) == [0, 1]
    assert subject.members.overdue(deadline_ns) == []
    assert subject.members.next_deadline_ns() is None


def test_nobody_is_overdue_where_nobody_is_waited_for() -> None:
    subject = Subject()
    subject.members.await_all(0)
    subject.members.await_nobody()
    assert subject.members.overdue(10**18) == []


def test_silence_is_a_deadline_and_names_the_silent() -> None:
    subject = Subject()
    subject.register(0, now_ns=5)
    subject.register(1, now_ns=9)
    latest_ns = 5 + RULES.heartbeat_timeout_ns
    assert subject.members.next_deadline_ns() == latest_ns + 1
    assert subject.members.silent(latest_ns) == []
    assert [member.worker for member in subject.members.silent(latest_ns + 1)] == [0]


def test_a_lost_member_is_replaced_and_its_successor_has_the_whole_time() -> None:
    subject = Subject()
    subject.register(0)
    assert subject.exited(0, 0) == Loss(attempt="worker 0 was lost: exit code 1")
    assert subject.told() == ["replace 0"]
    assert subject.roster.missing == [0, 1]
    assert subject.members.next_deadline_ns() == RULES.register_timeout_ns


def test_an_older_incarnation_is_sent_away_and_nobody_else_asked_for() -> None:
    subject = Subject()
    subject.register(0)
    newer = m.Register(0, 1, "host", 1000, 1)
    loss = subject.members.replaced_by(newer, 0, subject.effects)
    assert loss == Loss(attempt="worker 0 was lost: incarnation 1 took its place")
    assert subject.told() == ["Shutdown to 0", "close 0"]
    assert subject.register(0, 1)


def test_a_zombie_is_sent_away_and_costs_nothing() -> None:
    subject = Subject()
    subject.register(0, 1)
    older = m.Register(0, 0, "host", 1000, 1)
    assert subject.members.replaced_by(older, 0, subject.effects) == Loss()
    assert not subject.register(0, 0)
    assert subject.told() == ["Shutdown to 0", "close 0"]
    assert subject.exited(0, 0) == Loss()


def test_workers_that_never_come_end_the_job_unless_somebody_comes_in_between() -> None:
    subject = Subject()
    most = RULES.restarts.attempts_max
    for incarnation in range(most):
        assert subject.exited(0, incarnation) == Loss()
    assert subject.told() == ["replace 0"] * most
    subject.register(1)
    assert subject.exited(0, most) == Loss()
    for incarnation in range(most + 1, 2 * most):
        assert subject.exited(0, incarnation) == Loss()
    text = "worker 0 ended before it registered: exit code 1"
    assert subject.exited(0, 2 * most) == Loss(job=text)
