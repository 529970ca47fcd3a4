"""What writers and committers of a Kafka sink share: where, how, and errors as sentences."""

from __future__ import annotations

from dataclasses import dataclass

from ...contract.errors import UserError
from .cluster import (
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerError,
    Cluster,
    Connect,
    error_name,
)
from .compression import Compression
from .connection import Address, Connection
from .outgoing import Layout
from .security import Security
from .transactions import INVALID_TRANSACTION_TIMEOUT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED

#: How long records are sent again, and requests of transactions repeated.
WRITE_PATIENCE_S = 120.0
_INVALID_TOPIC = 17
_TOPIC_REFUSED = 29
_GROUP_REFUSED = 30
_CLUSTER_REFUSED = 31

LOST_HINT = (
    "its records are lost if they are not in the topic; the job was away from its broker for longer"
    " than transaction_timeout, or another program used its transactional ids: begin anew"
    " (fresh=append), and give a longer transaction_timeout or let the broker offer two-phase"
    " commit"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A sink's options, checked.

    Attributes:
        exactly_once: in transactions.
        two_phase: without a time limit where the broker offers that (KIP-939).
    """

    servers: tuple[Address, ...]
    security: Security
    layout: Layout
    exactly_once: bool
    two_phase: bool
    timeout_ms: int
    compression: Compression
    batch_bytes: int
    connect: Connect = Connection

    def cluster(self, *, patience_s: float = WRITE_PATIENCE_S) -> Cluster:
        """Make a client; it connects when it is first asked."""
        return Cluster(self.servers, self.security, patience_s=patience_s, connect=self.connect)

    def partitions(self, cluster: Cluster, topic: str) -> int:
        """Return how many partitions a topic has. Raises: UserError, AddressUnreachable."""
        described = cluster.patiently(lambda: cluster.topics([topic])[topic])
        if described.error:
            raise UserError(self.sentence(BrokerError(f"topic {topic!r}", described.error)))
        return len(described.leaders)

    def sentence(self, error: BrokerError) -> str:
        """Say what a broker refused, and what to do."""
        advice = {
            UNKNOWN_TOPIC_OR_PARTITION: (
                f"it does not exist at {self._where}: create it (kafka-topics --create), or name"
                " another one"
            ),
            _INVALID_TOPIC: "Kafka takes no topic of this name",
            _TOPIC_REFUSED: "this user may not write to it: allow WRITE and DESCRIBE"
            " (exactly once: READ as well, for the transaction's token)",
            _GROUP_REFUSED: "this user may not store a transaction's token: allow READ of groups"
            " whose names begin with the job's",
            _CLUSTER_REFUSED: "this user may not write as an idempotent producer: allow"
            " IDEMPOTENT_WRITE on the cluster",
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not write transactions: allow"
            " WRITE and DESCRIBE of transactional ids whose names begin with the job's, or write"
            ' with delivery="at-least-once"',
            INVALID_TRANSACTION_TIMEOUT: f"the broker allows less than"
            f" transaction_timeout={self.timeout_ms / 1000:g} s: lower it, or raise the broker's"
            " transaction.max.timeout.ms",
        }.get(error.code)
        return f"{error.what}: {advice} ({error_name(error.code)})" if advice else str(error)

    @property
    def _where(self) -> str:
        return ",".join(map(str, self.servers))
