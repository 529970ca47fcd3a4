"""A Kafka cluster: brokers, leaders of partitions, coordinators, and patience.

A broker that restarts, a leader that moves, a coordinator that loads are no failures: a call is
repeated with a growing pause until its time is up. So everything that goes through `patiently` must
do no harm when it is done twice.

For one thread; connections are opened when they are first asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kafka.errors import for_code
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.metadata.find_coordinator import CoordinatorType

from ...contract.errors import AddressUnreachable, HeadraceError, UserError
from .connection import Address, BrokerLost, Connection, Request, Response
from .security import Security

T = TypeVar("T")
Connect = Callable[[Address, Security], Connection]

#: How long a call is repeated.
PATIENCE_S = 30.0
DEFAULT_PORT = 9092
GROUP: CoordinatorType = CoordinatorType.GROUP
TRANSACTION: CoordinatorType = CoordinatorType.TRANSACTION

NO_ERROR = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
_LEADER_NOT_AVAILABLE = 5
COORDINATOR_LOADING = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
_COORDINATOR_MOVED = (COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)
#: Newest version that names topics, and not their ids.
_METADATA_VERSION = 12
#: Newest version that asks for one key.
_FIND_VERSION = 3
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class BrokerError(HeadraceError):
    """A broker answered with an error.

    Attributes:
        code: the protocol's number.
        retriable: the same request may succeed later.
    """

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what, code)
        self.what = what
        self.code = code

    @property
    def retriable(self) -> bool:
        """Whether Kafka calls this error one that passes."""
        return is_retriable(self.code)

    def __str__(self) -> str:
        return f"{self.what}: {error_name(self.code)}"


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A partition of a topic."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster describes it.

    Attributes:
        id: made anew when a topic is deleted and created again; empty: the broker is too old.
        leaders: {partition: broker that leads it; -1: none does now}.
        error: code of why the cluster does not describe it; the rest is empty then.
    """

    name: str
    id: str = ""
    leaders: Mapping[int, int] = field(default_factory=dict)
    error: int = NO_ERROR


class Cluster:
    """Brokers that are found from a few bootstrap addresses."""

    def __init__(
        self,
        servers: Sequence[Address],
        security: Security,
        *,
        patience_s: float = PATIENCE_S,
        connect: Connect = Connection,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to nothing yet.

        Args:
            servers: where to ask first.
            patience_s: how long calls are repeated.
        """
        self.servers = tuple(servers)
        self._security = security
        self._patience_s = patience_s
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        #: {broker: address}, as of the last metadata.
        self._brokers: dict[int, Address] = {}
        self._connections: dict[Address, Connection] = {}
        self._topics: dict[str, Topic] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._stopped = False

    def __str__(self) -> str:
        return ",".join(map(str, self.servers))

    def patiently(self, attempt: Callable[[], T], *, patience_s: float | None = None) -> T:
        """Call `attempt` until it succeeds; lost brokers and retriable errors are tried again.

        Raises: AddressUnreachable and BrokerError, when time is up; any other error of `attempt`.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        deadline = self._clock() + patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return attempt()
            except BrokerLost as error:
                if self._stopped or self._clock() + pause_s > deadline:
                    raise AddressUnreachable(
                        f"Kafka at {self} could not be reached for {patience_s:g} s: {error}"
                    ) from error
            except BrokerError as error:
                late = self._stopped or self._clock() + pause_s > deadline
                if late or not error.retriable:
                    raise
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def stop_trying(self) -> None:
        """Repeat no call any more. For any thread."""
        self._stopped = True

    def any(self, request: Request, *, max_version: int | None = None) -> Response:
        """Ask a broker, whichever answers. Raises: BrokerLost, when none does."""
        failures = []
        known = [*self._connections, *self._brokers.values(), *self.servers]
        for address in dict.fromkeys(known):
            try:
                return self.at(address).call(request, max_version=max_version)
            except BrokerLost as error:
                failures.append(str(error))
        raise BrokerLost("; ".join(failures))

    def at(self, address: Address) -> Connection:
        """Return the connection to an address, opened if it is not open. Raises: BrokerLost."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            self._connections.pop(address, None)
            connection = self._connections[address] = self.connect(address)
        return connection

    def connect(self, address: Address) -> Connection:
        """Open a connection of the caller's own, who closes it. Raises: BrokerLost."""
        return self._connect(address, self._security)

    def broker(self, node: int) -> Address:
        """Return the address of a broker. Raises: BrokerLost, when the metadata has none."""
        if node not in self._brokers:
            raise BrokerLost(f"broker {node} of {self} is not there now")
        return self._brokers[node]

    def brokers(self) -> list[Address]:
        """Ask for the addresses of all brokers. Raises: BrokerLost."""
        self.topics([])
        return sorted(self._brokers.values())

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Ask the cluster about topics; those it does not describe carry an `error`.

        Raises: BrokerLost; BrokerError, while a topic's leaders are being elected.
        """
        names = sorted(set(names))
        asked = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        answer = self.any(asked, max_version=_METADATA_VERSION)
        self._brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        described = {each.name: _topic(each) for each in answer.topics}
        for topic in described.values():
            if is_retriable(topic.error) and topic.error != UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokerError(f"topic {topic.name!r} of {self}", topic.error)
        self._topics.update(described)
        return described

    def leader(self, partition: Partition) -> Address:
        """Return the address of a partition's leader, as last known.

        Raises: BrokerLost, BrokerError: it is not known now.
        """
        topic = self._topics.get(partition.topic)
        if topic is None or topic.leaders.get(partition.index, -1) < 0:
            topic = self.topics([partition.topic])[partition.topic]
        node = topic.leaders.get(partition.index, -1)
        if node < 0:
            code = topic.error or _LEADER_NOT_AVAILABLE
            raise BrokerError(f"partition {partition} of {self}", code)
        return self.broker(node)

    def forget_leaders(self) -> None:
        """Ask anew for leaders when they are next needed: one has moved, or is lost."""
        self._topics.clear()

    def at_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: Request,
        *,
        max_version: int | None = None,
        errors: Callable[[Response], Iterable[int]] = lambda answer: (answer.error_code,),
        patience_s: float | None = None,
    ) -> Response:
        """Ask the coordinator of a group or a transactional id, until an answer has no retriable
        error. Other errors are left to the caller.

        Args:
            errors: the codes in an answer.

        Raises: AddressUnreachable; BrokerError: a retriable error that did not pass.
        """

        def attempt() -> Response:
            try:
                address = self.coordinator(kind, key)
                answer = self.at(address).call(request, max_version=max_version)
            except BrokerLost:
                self._coordinators.pop((kind, key), None)
                raise
            codes = list(errors(answer))
            if any(code in _COORDINATOR_MOVED for code in codes):
                self._coordinators.pop((kind, key), None)
            for code in codes:
                if is_retriable(code):
                    raise BrokerError(f"{request.name} for {key!r} at {address}", code)
            return answer

        return self.patiently(attempt, patience_s=patience_s)

    def coordinator(self, kind: CoordinatorType, key: str) -> Address:
        """Return the address of the coordinator of a group or a transactional id.

        Raises: BrokerLost, BrokerError.
        """
        address = self._coordinators.get((kind, key))
        if address is None:
            asked = FindCoordinatorRequest(key=key, key_type=int(kind))
            answer = self.any(asked, max_version=_FIND_VERSION)
            if answer.error_code:
                raise BrokerError(f"coordinator of {key!r} at {self}", answer.error_code)
            address = self._coordinators[kind, key] = Address(answer.host, answer.port)
        return address

    def close(self) -> None:
        """Close every connection; does not raise."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def is_retriable(code: int) -> bool:
    """Whether Kafka calls this error one that passes."""
    return bool(for_code(code).retriable)


def error_name(code: int) -> str:
    """Return Kafka's word and number of an error."""
    return f"{for_code(code).message or 'an error that headrace does not know'} ({code})"


def parse_servers(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Parse "host:port,host:port", or a list of these. Raises: UserError."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise UserError(f'servers={servers!r}: give addresses of brokers, as in "broker:9092"')
    return tuple(_address(part.strip()) for part in parts)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise UserError(f'servers: {text!r} is no address of a broker, as in "broker:9092"')
    return Address(host.strip("[]"), int(port))


def _topic(described: Response) -> Topic:
    leaders = {each.partition_index: each.leader_id for each in described.partitions}
    id_ = "" if described.topic_id is None else str(described.topic_id)
    return Topic(described.name, id_, leaders, described.error_code)
