"""Who is there: the workers' registrations, their incarnations and signs of life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.recovery.metadata import SubtaskSnapshot

from ..contract.messages import PeerAddress, Register


@dataclass(slots=True)
class Member:
    """A registered worker."""

    worker: int
    incarnation: int
    connection: int
    address: PeerAddress
    seen_ns: int


class Roster:
    """The workers 0..n-1 of a job; at most one member each, always its newest incarnation."""

    def __init__(self, slots: list[list[int]]) -> None:
        #: Slots by worker.
        self._slots = slots
        self._members: dict[int, Member] = {}
        #: {connection: worker}
        self._connections: dict[int, int] = {}
        #: {worker: highest incarnation ever seen}
        self._newest: dict[int, int] = {}

    def register(self, connection: int, message: Register, now_ns: int) -> bool:
        """Enter a worker. False: it is unknown, or a newer (or the same) incarnation has been here: a zombie."""
        if not 0 <= message.worker < len(self._slots):
            return False
        if message.incarnation <= self._newest.get(message.worker, -1):
            return False
        assert message.worker not in self._members, "remove the older incarnation first"
        self._newest[message.worker] = message.incarnation
        slots = self._slots[message.worker]
        address = PeerAddress(message.worker, message.host, message.port, slots)
        self._members[message.worker] = Member(
            message.worker, message.incarnation, connection, address, now_ns
        )
        self._connections[connection] = message.worker
        return True

    def never_seen(self, worker: int, incarnation: int) -> bool:
        """Neither this incarnation nor a newer one has ever registered."""
        return incarnation > self._newest.get(worker, -1)

    def remove(self, worker: int) -> Member | None:
        """Take a worker off the roster."""
        member = self._members.pop(worker, None)
        if member is not None:
            del self._connections[member.connection]
        return member

    def of(self, connection: int) -> Member | None:
        """The member behind a connection."""
        worker = self._connections.get(connection)
        return None if worker is None else self._members[worker]

    def member(self, worker: int) -> Member | None:
        """The member with this number."""
        return self._members.get(worker)

    def silent(self, since_ns: int) -> list[Member]:
        """Members not heard of since `since_ns`."""
        return [m for m in self.members if m.seen_ns < since_ns]

    @property
    def complete(self) -> bool:
        """Every worker is there."""
        return len(self._members) == len(self._slots)

    @property
    def members(self) -> list[Member]:
        """All members by number."""
        return [m for _, m in sorted(self._members.items())]

    def shares(
        self, snapshots: Sequence[SubtaskSnapshot]
    ) -> list[tuple[int, list[PeerAddress], list[SubtaskSnapshot]]]:
        """By member: its connection, everybody's address, and the snapshots of the subtasks in its slots."""
        peers = [member.address for member in self.members]
        return [
            (w.connection, peers, [s for s in snapshots if s.index in w.address.slots])
            for w in self.members
        ]

    @property
    def missing(self) -> list[int]:
        """Numbers of the workers that are not there."""
        return [w for w in range(len(self._slots)) if w not in self._members]

    @property
    def oldest_sign_ns(self) -> int | None:
        """When the most silent member was last heard of."""
        return min((m.seen_ns for m in self._members.values()), default=None)
