"""Record batches on their way to the leaders of partitions, several requests under way.

Each batch has a sequence number. So after a lost connection, a leader that moved or a broker that
restarted, every batch without an answer is sent again, in order: the broker takes a repeated one
for what it is, as long as no more than `UNDER_WAY_MAX` of a partition wait.

For one thread. Batches that nobody has answered when the producer is dropped may or may not have
been written.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from .cluster import NO_ERROR, BrokerError, Cluster, Partition, is_retriable
from .connection import Address, BrokerLost, Connection, Response
from .produce import send_produce

#: A broker remembers so many batches of a producer and partition.
UNDER_WAY_MAX = 5
_DUPLICATE_SEQUENCE = 46
_OUT_OF_ORDER_SEQUENCE = 45


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A record batch in parts, for one partition."""

    partition: Partition
    records: Sequence[pa.Buffer]


class _Again(Exception):
    """Something is to be sent again."""


class Producer:
    """Sends record batches; `flush` returns when all are written."""

    def __init__(self, cluster: Cluster, links: Cluster, *, patience_s: float) -> None:
        """Begin without a transaction.

        Args:
            cluster: tells where leaders are.
            links: connections on which nothing else is asked.
            patience_s: how long batches are sent again.
        """
        self._cluster = cluster
        self._links = links
        self._patience_s = patience_s
        self._transactional_id: str | None = None
        #: {partition: number of its next record}, of this producer id and epoch.
        self._sequences: dict[Partition, int] = {}
        #: Batches without an answer, in the order of `send`.
        self._unanswered: deque[Outgoing] = deque()
        #: {leader: requests under way}; each request has one batch of a partition.
        self._under_way: dict[Address, deque[Sequence[Outgoing]]] = {}

    def begin(self, transactional_id: str | None) -> None:
        """Work for another producer id or epoch. All is flushed, or given up."""
        self._transactional_id = transactional_id
        self._sequences.clear()
        self._unanswered.clear()
        if self._under_way:
            self._links.close()
        self._under_way.clear()

    @property
    def partitions(self) -> list[Partition]:
        """Partitions that have been written to since `begin`."""
        return list(self._sequences)

    def sequence(self, partition: Partition, count: int) -> int:
        """Return the number of the next record of a partition, and take `count` numbers."""
        sequence = self._sequences.get(partition, 0)
        # After the largest number of four bytes comes zero.
        self._sequences[partition] = (sequence + count) & 0x7FFFFFFF
        return sequence

    def send(self, batches: Sequence[Outgoing]) -> None:
        """Send batches, at most one of a partition.

        Raises: BrokerError, AddressUnreachable: a batch cannot be written, nor those behind it.
        """
        self._unanswered += batches
        try:
            for address, group in self._by_leader(batches):
                connection = self._links.at(address)
                waiting = self._under_way.setdefault(address, deque())
                while len(waiting) >= UNDER_WAY_MAX:
                    self._receive(connection, waiting)
                self._send(connection, group)
                waiting.append(group)
        except (BrokerLost, _Again):
            self._send_again()
        except BrokerError as error:
            if not error.retriable:
                raise
            self._send_again()

    def flush(self) -> None:
        """Wait until all is written. Raises: as `send`."""
        try:
            for address, waiting in self._under_way.items():
                while waiting:
                    self._receive(self._links.at(address), waiting)
        except (BrokerLost, _Again):
            self._send_again()
        assert not self._unanswered, f"{len(self._unanswered)} batches without an answer"

    def _by_leader(self, batches: Sequence[Outgoing]) -> Iterator[tuple[Address, list[Outgoing]]]:
        groups: dict[Address, list[Outgoing]] = defaultdict(list)
        for each in batches:
            groups[self._cluster.leader(each.partition)].append(each)
        yield from groups.items()

    def _send(self, connection: Connection, batches: Sequence[Outgoing]) -> None:
        parts = {each.partition: each.records for each in batches}
        send_produce(connection, parts, transactional_id=self._transactional_id)

    def _receive(self, connection: Connection, waiting: deque[Sequence[Outgoing]]) -> None:
        """Take one answer. Raises: BrokerLost, BrokerError, _Again."""
        if not connection.waiting:
            # A new connection to the same leader: what was under way on the old one is lost.
            raise _Again
        codes = _codes(connection.receive())
        group = waiting.popleft()
        again = False
        for each in group:
            code = codes[each.partition]
            if is_retriable(code) or code == _OUT_OF_ORDER_SEQUENCE:
                # Out of order: a batch before this one has failed.
                again = True
            elif code and code != _DUPLICATE_SEQUENCE:
                raise BrokerError(f"partition {each.partition}", code)
            else:
                self._unanswered.remove(each)
        if again:
            raise _Again

    def _send_again(self) -> None:
        """Send all batches without an answer one by one, each until it is written."""
        self._links.close()
        self._under_way.clear()
        while self._unanswered:
            partition = self._unanswered[0].partition
            self._settle([each for each in self._unanswered if each.partition == partition])

    def _settle(self, batches: Sequence[Outgoing]) -> None:
        """Send batches of one partition until one of them is written.

        A broker that has restarted may know only the last batch of before: it calls those before
        it out of order. A batch that it takes, or knows, tells that all before it are written.
        """
        for count, batch in enumerate(batches, start=1):
            ask = partial(self._send_one, batch)
            if self._cluster.patiently(ask, patience_s=self._patience_s):
                for written in batches[:count]:
                    self._unanswered.remove(written)
                return
        raise BrokerError(f"partition {batches[0].partition}", _OUT_OF_ORDER_SEQUENCE)

    def _send_one(self, batch: Outgoing) -> bool:
        """Send a batch; return False if it is out of order. Raises: BrokerLost, BrokerError."""
        try:
            connection = self._links.at(self._cluster.leader(batch.partition))
            self._send(connection, [batch])
            code = _codes(connection.receive())[batch.partition]
        except BrokerLost:
            self._cluster.forget_leaders()
            raise
        if code not in (NO_ERROR, _DUPLICATE_SEQUENCE, _OUT_OF_ORDER_SEQUENCE):
            self._cluster.forget_leaders()
            raise BrokerError(f"partition {batch.partition}", code)
        return code != _OUT_OF_ORDER_SEQUENCE


def _codes(answer: Response) -> dict[Partition, int]:
    return {
        Partition(topic.name, each.index): each.error_code
        for topic in answer.responses
        for each in topic.partition_responses
    }
