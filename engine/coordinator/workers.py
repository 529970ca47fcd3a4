"""The workers of a job: registrations, signs of life, losses and successors.

`Workers` owns members, connections, incarnations, and the time by which missing workers must
register. Lost workers are told to the coordinator by `AttemptBroken` or `JobBroken` among effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.recovery.metadata import SubtaskSnapshot

from ..contract.messages import PeerAddress, Pulse, Register, Shutdown, ToWorker
from .coordinator_events import (
    AttemptBroken,
    CloseConnection,
    ConnectionLost,
    CoordinatorEffect,
    JobBroken,
    Notice,
    NoticeKind,
    PartEffect,
    ReplaceWorker,
    SendMessage,
    WorkerExited,
)
from .rules import CoordinatorRules


@dataclass(slots=True)
class Member:
    """A registered worker.

    Attributes:
        seen_ns: when it last gave a sign of life, by itself or through its companion.
        heard_ns: when it last sent a message by itself.
        silence_told: users know of its present silence.
    """

    worker: int
    incarnation: int
    connection: int
    address: PeerAddress
    seen_ns: int
    heard_ns: int
    silence_told: bool = False

    def hear(self, now_ns: int) -> None:
        """It sent a message by itself."""
        self.seen_ns = self.heard_ns = now_ns
        self.silence_told = False


class Workers:
    """The workers 0..n-1 of a job: at most one member each, always the newest incarnation.

    Args:
        slots: slots by worker.
    """

    def __init__(self, slots: list[list[int]], rules: CoordinatorRules) -> None:
        self._slots = slots
        self._heartbeat_timeout_ns = rules.heartbeat_timeout_ns
        self._register_timeout_ns = rules.register_timeout_ns
        self._stillborn_max = rules.restarts.attempts_max
        self._members: dict[int, Member] = {}
        #: {connection: worker}
        self._connections: dict[int, int] = {}
        #: {worker: highest incarnation ever seen}
        self._newest: dict[int, int] = {}
        #: Workers that ended before they registered, since the last registration.
        self._stillborn = 0
        self._register_by_ns: int | None = None

    # --- present and missing workers --------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Every worker is there."""
        return len(self._members) == len(self._slots)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the members."""
        return sorted(self._members)

    @property
    def missing(self) -> list[int]:
        """Numbers of the workers without a member."""
        return [w for w in range(len(self._slots)) if w not in self._members]

    def of(self, connection: int) -> Member | None:
        """The member behind a connection."""
        worker = self._connections.get(connection)
        return None if worker is None else self._members[worker]

    def send_all(self, message: ToWorker) -> list[CoordinatorEffect]:
        """Send the message to every member, by number."""
        return [SendMessage(member.connection, message) for member in self._by_number()]

    def shares(
        self, snapshots: Sequence[SubtaskSnapshot]
    ) -> list[tuple[int, list[PeerAddress], list[SubtaskSnapshot]]]:
        """By member: connection, addresses of all, and snapshots of the subtasks in its slots."""
        peers = [member.address for member in self._by_number()]
        return [
            (w.connection, peers, [s for s in snapshots if s.index in w.address.slots])
            for w in self._by_number()
        ]

    def _by_number(self) -> list[Member]:
        return [self._members[worker] for worker in self.numbers]

    # --- time -------------------------------------------------------------------------------------

    def await_all(self, now_ns: int) -> None:
        """Give missing workers the whole time to register, from now on."""
        self._register_by_ns = now_ns + self._register_timeout_ns

    def await_nobody(self) -> None:
        """All workers are there, or the job needs no more."""
        self._register_by_ns = None

    def next_deadline_ns(self) -> int | None:
        """When missing workers are overdue, or the most silent member is lost."""
        sign_ns = min((m.seen_ns for m in self._members.values()), default=None)
        silence_ns = None if sign_ns is None else sign_ns + self._heartbeat_timeout_ns + 1
        deadlines = (self._register_by_ns, silence_ns)
        return min((t for t in deadlines if t is not None), default=None)

    def overdue(self, now_ns: int) -> list[PartEffect]:
        """Fail the job, once, if a worker has not registered in time."""
        if self._register_by_ns is None or self._register_by_ns > now_ns:
            return []
        self._register_by_ns = None
        missing = ", ".join(map(str, self.missing))
        return [JobBroken(f"workers {missing} did not start in time")] if missing else []

    def silent(self, now_ns: int) -> list[Member]:
        """Members with too old a sign of life, by number."""
        since_ns = now_ns - self._heartbeat_timeout_ns
        return [member for member in self._by_number() if member.seen_ns < since_ns]

    def pulse(self, message: Pulse, now_ns: int) -> int | None:
        """Note that the worker's process lives.

        Returns how long the worker itself has been silent, once, when the silence has lasted half
        of the heartbeat timeout. Without its companion the worker would soon be lost.
        """
        member = self._members.get(message.worker)
        if member is None or member.incarnation != message.incarnation:
            return None
        member.seen_ns = now_ns
        silence_ns = now_ns - member.heard_ns
        if member.silence_told or 2 * silence_ns < self._heartbeat_timeout_ns:
            return None
        member.silence_told = True
        return silence_ns

    def forgive(self, slept_ns: int, now_ns: int) -> None:
        """Give members the whole time for a sign of life if the driver was deaf for long."""
        if 4 * slept_ns >= self._heartbeat_timeout_ns:
            for member in self._members.values():
                member.seen_ns = now_ns

    # --- coming and going -------------------------------------------------------------------------

    def admits(self, message: Register) -> bool:
        """Whether the worker belongs to the job, and is newer than any registered incarnation."""
        known = 0 <= message.worker < len(self._slots)
        return known and message.incarnation > self._newest.get(message.worker, -1)

    def make_place(self, message: Register, now_ns: int) -> list[PartEffect]:
        """Send away the older incarnation of a registering worker."""
        older = self._members.get(message.worker)
        if older is None:
            return []
        # The successor is here: asking for another would set off successors without end.
        reason = f"incarnation {message.incarnation} took its place"
        return [
            SendMessage(older.connection, Shutdown("replaced")),
            CloseConnection(older.connection),
            *self.lost(older, reason, now_ns, replace=False),
        ]

    def register(self, connection: int, message: Register, now_ns: int) -> None:
        """Enter an admitted worker, after `make_place`."""
        worker = message.worker
        assert worker not in self._members, "make place first"
        self._newest[worker] = message.incarnation
        address = PeerAddress(worker, message.host, message.port, self._slots[worker])
        self._members[worker] = Member(
            worker, message.incarnation, connection, address, now_ns, now_ns
        )
        self._connections[connection] = worker
        self._stillborn = 0

    def disconnected(self, event: ConnectionLost, now_ns: int) -> list[PartEffect]:
        """Lose the member behind the connection, if any."""
        member = self.of(event.connection)
        return [] if member is None else self.lost(member, event.reason, now_ns)

    def exited(self, event: WorkerExited, now_ns: int) -> list[PartEffect]:
        """Lose the member, or replace a worker that never registered.

        The job fails after `attempts_max` unregistered workers in a row.
        """
        worker = event.worker
        member = self._members.get(worker)
        if member is not None and member.incarnation == event.incarnation:
            return self.lost(member, event.reason, now_ns)
        if event.incarnation <= self._newest.get(worker, -1):
            return []
        self._stillborn += 1
        text = f"worker {worker} ended before it registered: {event.reason}"
        broken = self._stillborn > self._stillborn_max
        notice = Notice(NoticeKind.WORKER_LOST, text)
        return [notice, JobBroken(text) if broken else ReplaceWorker(worker)]

    def lost(
        self, member: Member, reason: str, now_ns: int, *, replace: bool = True
    ) -> list[PartEffect]:
        """Remove a member and give a successor the whole time to register."""
        worker = member.worker
        del self._members[worker], self._connections[member.connection]
        self.await_all(now_ns)
        notice = Notice(NoticeKind.WORKER_LOST, f"worker {worker}: {reason}")
        broken = AttemptBroken(f"worker {worker} was lost: {reason}")
        return [notice, ReplaceWorker(worker), broken] if replace else [notice, broken]
