"""Keeps fetches under way to the leaders of a subtask's partitions.

One request at a time is under way to each leader, and goes out before its records are needed: the
broker sends while the subtask works. A broker that is away, a leader that has moved are waited for,
each partition by itself, until patience is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...contract.errors import AddressUnreachable
from .cluster import BrokerError, Cluster, Partition, is_retriable
from .connection import Address, BrokerLost, Connection, ready
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


class Fetcher:
    """Fetches of one subtask."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        committed: bool,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._committed = committed
        self._patience_s = patience_s
        self._clock = clock
        self._connections: dict[Address, Connection] = {}
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
        asked = {p for each in self._under_way.values() for p in each.partitions}
        now = self._clock()
        due = {
            partition: offset
            for partition, offset in offsets.items()
            if partition not in asked and self._is_due(partition, now)
        }
        for connection, own in self._by_leader(due).items():
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

    def _is_due(self, partition: Partition, now: float) -> bool:
        trouble = self._troubles.get(partition)
        return trouble is None or trouble.again <= now

    def _by_leader(
        self, offsets: Mapping[Partition, int]
    ) -> dict[Connection, dict[Partition, int]]:
        """Sort partitions by the connection to their leader, where no request is under way."""
        leaders: dict[Address, dict[Partition, int]] = {}
        for partition, offset in offsets.items():
            try:
                leader = self._cluster.leader(partition)
            except (BrokerLost, BrokerError) as error:
                self._trouble([partition], error)
                continue
            leaders.setdefault(leader, {})[partition] = offset
        found = {}
        for leader, own in leaders.items():
            try:
                connection = self._at(leader)
            except BrokerLost as error:
                self._trouble(own, error)
                continue
            if connection not in self._under_way:
                found[connection] = own
        return found

    def _at(self, address: Address) -> Connection:
        """Return the connection to a leader; the cluster's own are for calls."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            self._connections.pop(address, None)
            connection = self._connections[address] = self._cluster.connect(address)
        return connection

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
            self._trouble(asked.partitions, BrokerError(f"a fetch from {self._cluster}", code))
            return []
        if {each.partition for each in answers} != asked.partitions:
            raise BadFetch(f"a fetch from {self._cluster} was answered for other partitions")
        good = []
        for each in answers:
            if each.error and is_retriable(each.error):
                what = f"partition {each.partition} of {self._cluster}"
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
        self._cluster.forget_leaders()
        now = self._clock()
        for partition in partitions:
            before = self._troubles.get(partition)
            since = now if before is None else before.since
            if isinstance(error, BrokerError) and not error.retriable:
                raise error
            if now - since > self._patience_s:
                raise AddressUnreachable(
                    f"partition {partition} of Kafka at {self._cluster} could not be read for"
                    f" {self._patience_s:g} s: {error}"
                ) from error
            self._troubles[partition] = _Trouble(since, now + _PAUSE_S)
