"""Keeps fetches under way to the leaders of a subtask's partitions.

One request at a time is under way to each leader, and goes out before its records are needed: the
broker sends while the subtask works. A broker that is away, a leader that has moved are waited for,
each partition by itself, until patience is up. Leaders are sought and connected to as an errand, so
a fetch never waits for longer than it was told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...contract.errors import AddressUnreachable
from .cluster import BrokerError, Cluster, Partition, is_retriable
from .connection import Address, BrokerLost, Connection, ready
from .errands import Errand, Errands
from .fetch import VERSION, BadFetch, Fetched, fetch_request, parse_fetch

#: How long a broker holds a fetch back when it has no record.
_WAIT_MS = 100
#: Of a response, and of a partition in it.
BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 4 << 20
#: A broker that does not answer for so long is lost.
_ANSWER_S = 30.0
_PAUSE_S = 0.1
#: A broker restarts within this time, or an operator has a look.
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Fetches of a partition that fail: since when, and when to try again."""

    since: float
    again: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request under way."""

    partitions: frozenset[Partition]
    at: float


@dataclass(frozen=True, slots=True)
class _Found:
    """What an errand has found.

    Attributes:
        connections: new ones.
        errors: {partition: why it has no leader, or its leader no connection}.
    """

    leaders: dict[Partition, Address]
    connections: dict[Address, Connection]
    errors: dict[Partition, BrokerLost | BrokerError]

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


class Fetcher:
    """Fetches of one subtask."""

    def __init__(
        self,
        errands: Errands,
        *,
        committed: bool,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._errands = errands
        self._committed = committed
        self._patience_s = patience_s
        self._clock = clock
        #: {partition: its leader}, as last found.
        self._leaders: dict[Partition, Address] = {}
        #: The cluster's own connections are for questions.
        self._connections: dict[Address, Connection] = {}
        self._seeking: Errand[_Found] | None = None
        self._under_way: dict[Connection, _Asked] = {}
        #: {partition: trouble}; key set == partitions whose last fetch failed.
        self._troubles: dict[Partition, _Trouble] = {}

    def fetch(self, offsets: Mapping[Partition, int], wait_s: float) -> list[Fetched]:
        """Ask for records from these offsets on, where no request is under way, and return the
        answers that are there, or come within `wait_s`.

        A partition's offset may change only after its answer. Errors that pass are waited for;
        others are in the answers.

        Raises: AddressUnreachable, BrokerError, when patience is up; BadFetch, BadResponse.
        """
        if not self._under_way and self._seeking is not None:
            self._seeking.wait(wait_s)
        self._take_found()
        due = self._due(offsets)
        self._seek([each for each in due if self._connection(each) is None])
        self._take_found()
        for connection, own in self._by_connection(self._due(offsets)).items():
            self._ask(connection, own)
        answers: list[Fetched] = []
        for connection in ready(list(self._under_way), wait_s):
            answers += self._answer(connection)
        self._give_up_silent()
        return answers

    def close(self) -> None:
        """Close the connections; does not raise."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._under_way.clear()
        self._errands.close()
        if self._seeking is not None and self._seeking.is_over:
            self._seeking.tell(_Found.close)

    @property
    def is_idle(self) -> bool:
        """Whether no answer is under way, so that a fetch does not wait for any."""
        return not self._under_way and self._seeking is None

    def _due(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the partitions to ask for now."""
        asked = {p for each in self._under_way.values() for p in each.partitions}
        now = self._clock()
        return {
            partition: offset
            for partition, offset in offsets.items()
            if partition not in asked and self._is_due(partition, now)
        }

    def _is_due(self, partition: Partition, now: float) -> bool:
        trouble = self._troubles.get(partition)
        return trouble is None or trouble.again <= now

    def _connection(self, partition: Partition) -> Connection | None:
        """Return the open connection to a partition's leader, if there is one."""
        leader = self._leaders.get(partition)
        connection = None if leader is None else self._connections.get(leader)
        return None if connection is None or connection.closed else connection

    def _by_connection(
        self, offsets: Mapping[Partition, int]
    ) -> dict[Connection, dict[Partition, int]]:
        """Sort partitions by the connection to their leader, where no request is under way."""
        found: dict[Connection, dict[Partition, int]] = {}
        for partition, offset in offsets.items():
            connection = self._connection(partition)
            if connection is not None and connection not in self._under_way:
                found.setdefault(connection, {})[partition] = offset
        return found

    def _seek(self, partitions: Sequence[Partition]) -> None:
        """Look for the leaders of partitions, unless such an errand is under way."""
        if not partitions or self._seeking is not None:
            return
        there = {address for address, each in self._connections.items() if not each.closed}
        self._seeking = self._errands.go(
            lambda cluster: _find(cluster, partitions, there), unheard=_Found.close
        )

    def _take_found(self) -> None:
        """Take the result of an errand that is over. Raises: AddressUnreachable, BrokerError."""
        if self._seeking is None or not self._seeking.is_over:
            return
        seeking, self._seeking = self._seeking, None
        found = seeking.result()
        self._leaders.update(found.leaders)
        self._connections.update(found.connections)
        for partition, error in found.errors.items():
            self._trouble([partition], error)

    def _ask(self, connection: Connection, offsets: Mapping[Partition, int]) -> None:
        request = fetch_request(
            offsets,
            committed=self._committed,
            wait_ms=_WAIT_MS,
            bytes_max=BYTES_MAX,
            partition_bytes_max=PARTITION_BYTES_MAX,
        )
        try:
            connection.send(request, max_version=VERSION)
        except BrokerLost as error:
            self._trouble(offsets, error)
            return
        self._under_way[connection] = _Asked(frozenset(offsets), self._clock())

    def _answer(self, connection: Connection) -> list[Fetched]:
        asked = self._under_way.pop(connection)
        try:
            code, answers = parse_fetch(connection.receive_body(), committed=self._committed)
        except BrokerLost as error:
            self._trouble(asked.partitions, error)
            return []
        if code:
            self._trouble(asked.partitions, BrokerError(f"a fetch from {self._errands}", code))
            return []
        if {each.partition for each in answers} != asked.partitions:
            raise BadFetch(f"a fetch from {self._errands} was answered for other partitions")
        good = []
        for each in answers:
            if each.error and is_retriable(each.error):
                what = f"partition {each.partition} of {self._errands}"
                self._trouble([each.partition], BrokerError(what, each.error))
                continue
            self._troubles.pop(each.partition, None)
            good.append(each)
        return good

    def _give_up_silent(self) -> None:
        """Close connections whose broker is there and says nothing, as a frozen one does."""
        for connection, asked in list(self._under_way.items()):
            if self._clock() - asked.at > _ANSWER_S:
                connection.close()
                del self._under_way[connection]
                reason = f"{connection.address}: no answer for {_ANSWER_S:g} s"
                self._trouble(asked.partitions, BrokerLost(reason))

    def _trouble(self, partitions: Iterable[Partition], error: BrokerLost | BrokerError) -> None:
        """Try again later, at the leaders of then, unless patience is up."""
        now = self._clock()
        for partition in partitions:
            self._leaders.pop(partition, None)
            before = self._troubles.get(partition)
            since = now if before is None else before.since
            if isinstance(error, BrokerError) and not error.retriable:
                raise error
            if now - since > self._patience_s:
                raise AddressUnreachable(
                    f"partition {partition} of Kafka at {self._errands} could not be read for"
                    f" {self._patience_s:g} s: {error}"
                ) from error
            self._troubles[partition] = _Trouble(since, now + _PAUSE_S)


def _find(cluster: Cluster, partitions: Sequence[Partition], there: Container[Address]) -> _Found:
    """Find leaders, and connect to those that are not `there`."""
    found = _Found({}, {}, {})
    #: Brokers that were tried in vain: none is waited for twice.
    lost: dict[Address, BrokerLost] = {}
    for partition, leader in _leaders(cluster, partitions).items():
        if isinstance(leader, Address) and leader not in there and leader not in found.connections:
            try:
                if leader in lost:
                    raise lost[leader]
                found.connections[leader] = cluster.connect(leader)
            except BrokerLost as error:
                leader = lost[leader] = error
        if isinstance(leader, Address):
            found.leaders[partition] = leader
        else:
            found.errors[partition] = leader
    return found


def _leaders(
    cluster: Cluster, partitions: Sequence[Partition]
) -> dict[Partition, Address | BrokerLost | BrokerError]:
    """Ask for leaders, topic by topic."""
    cluster.forget_leaders()
    answers: dict[Partition, Address | BrokerLost | BrokerError] = {}
    for topic in {each.topic: None for each in partitions}:
        own = [each for each in partitions if each.topic == topic]
        try:
            cluster.topics([topic])
        except (BrokerLost, BrokerError) as error:
            answers.update(dict.fromkeys(own, error))
            continue
        for partition in own:
            try:
                answers[partition] = cluster.leader(partition)
            except (BrokerLost, BrokerError) as error:
                answers[partition] = error
    return answers
