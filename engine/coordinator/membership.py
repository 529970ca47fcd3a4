"""Workers that come, fall silent, die and are replaced, and how long those that are missing are waited for.

The coordinator decides what a loss means for the attempt or the job; this half of it keeps the roster and asks for successors.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import messages as m
from . import coordinator_events as d
from .roster import Member, Roster
from .rules import CoordinatorRules


@dataclass(frozen=True, slots=True)
class Loss:
    """What a worker's end means: `attempt` is why the attempt fails, `job` why the job does; both empty: nothing follows."""

    attempt: str = ""
    job: str = ""


class Membership:
    """The roster of one job as it changes."""

    def __init__(self, roster: Roster, rules: CoordinatorRules) -> None:
        self._roster = roster
        self._heartbeat_timeout_ns = rules.heartbeat_timeout_ns
        self._register_timeout_ns = rules.register_timeout_ns
        self._stillborn_max = rules.restarts.attempts_max
        #: Workers that ended before they registered, since one last did.
        self._stillborn = 0
        self._register_by_ns: int | None = None

    def await_all(self, now_ns: int) -> None:
        """Whoever is missing has from now on the whole time to come."""
        self._register_by_ns = now_ns + self._register_timeout_ns

    def await_nobody(self) -> None:
        """Everybody is there, or nobody is needed any more."""
        self._register_by_ns = None

    def next_deadline_ns(self) -> int | None:
        """When the time of the missing is over, or somebody will have been silent for too long."""
        sign_ns = self._roster.oldest_sign_ns
        silence_ns = None if sign_ns is None else sign_ns + self._heartbeat_timeout_ns + 1
        deadlines = (self._register_by_ns, silence_ns)
        return min((t for t in deadlines if t is not None), default=None)

    def overdue(self, now_ns: int) -> list[int]:
        """The workers that have not come in time; told once."""
        if self._register_by_ns is None or self._register_by_ns > now_ns:
            return []
        self._register_by_ns = None
        return self._roster.missing

    def silent(self, now_ns: int) -> list[Member]:
        """Members that have not been heard of for too long."""
        return self._roster.silent(now_ns - self._heartbeat_timeout_ns)

    def replaced_by(
        self, message: m.Register, now_ns: int, effects: list[d.CoordinatorEffect]
    ) -> Loss:
        """A worker registers whose older incarnation may be here still: that one is sent away."""
        older = self._roster.member(message.worker)
        if older is None or message.incarnation <= older.incarnation:
            return Loss()
        effects.append(d.SendMessage(older.connection, m.Shutdown("replaced")))
        effects.append(d.CloseConnection(older.connection))
        # Its successor is here: asking for another would set off a chain of successors without end.
        reason = f"incarnation {message.incarnation} took its place"
        return self.lost(older, reason, now_ns, effects, replace=False)

    def register(
        self,
        connection: int,
        message: m.Register,
        now_ns: int,
        effects: list[d.CoordinatorEffect],
    ) -> bool:
        """Enter a worker, after `replaced_by`. False: it is a zombie and was sent away."""
        if not self._roster.register(connection, message, now_ns):
            effects.append(d.SendMessage(connection, m.Shutdown("an older incarnation")))
            effects.append(d.CloseConnection(connection))
            return False
        self._stillborn = 0
        return True

    def exited(
        self, event: d.WorkerExited, now_ns: int, effects: list[d.CoordinatorEffect]
    ) -> Loss:
        """The launcher saw a worker end: a member, one that never came, or one that is known to be lost."""
        member = self._roster.member(event.worker)
        if member is not None and member.incarnation == event.incarnation:
            return self.lost(member, event.reason, now_ns, effects)
        if not self._roster.never_seen(event.worker, event.incarnation):
            return Loss()
        text = f"worker {event.worker} ended before it registered: {event.reason}"
        effects.append(d.Notice(d.NoticeKind.WORKER_LOST, text))
        self._stillborn += 1
        if self._stillborn > self._stillborn_max:
            return Loss(job=text)
        effects.append(d.ReplaceWorker(event.worker))
        return Loss()

    def lost(
        self,
        member: Member,
        reason: str,
        now_ns: int,
        effects: list[d.CoordinatorEffect],
        *,
        replace: bool = True,
    ) -> Loss:
        """A member is gone, and somebody is to come in its place."""
        self._roster.remove(member.worker)
        effects.append(d.Notice(d.NoticeKind.WORKER_LOST, f"worker {member.worker}: {reason}"))
        if replace:
            effects.append(d.ReplaceWorker(member.worker))
        self.await_all(now_ns)
        return Loss(attempt=f"worker {member.worker} was lost: {reason}")
