"""The Kafka sink: records in transactions that checkpoints commit.

A record is visible to readers of committed records (`isolation.level=read_committed`) after the
checkpoint that holds it; other readers see it before. `transactions.py` says how a transaction
outlives its writer and its coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa

from ...contract.connectors import Delivery
from ...contract.errors import UserError
from ...contract.suggestion import quoted
from ...contract.units import Duration, Size, duration_ns, size_bytes
from .cluster import parse_servers
from .committer import KafkaCommitter
from .compression import Compression
from .outgoing import Layout
from .security import Security
from .sink_settings import Settings
from .writer import KafkaWriter

#: How long a pipeline that is being built waits for an answer.
_CHECK_PATIENCE_S = 10.0
_MS_NS = 1_000_000
_INT32_MAX = (1 << 31) - 1
_BATCH_BYTES_MIN = 1024


class KafkaSink:
    """Writes records to topics, each once."""

    def __init__(
        self,
        layout: Layout,
        servers: str | Sequence[str],
        *,
        delivery: Delivery = "exactly-once",
        transaction_timeout: Duration = "15m",
        two_phase: bool = True,
        compression: Compression = "none",
        batch_size: Size = "512KiB",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the sink; nothing is asked before `check`.

        Args:
            layout: which columns make a record.
            servers: addresses of brokers.
            transaction_timeout: after which the broker aborts what was not committed.
            two_phase: ask for transactions without a time limit, if the broker offers these.
            batch_size: of a record batch before it is compressed.
            options: see `Security`.

        Raises: UserError.
        """
        if delivery not in get_args(Delivery):
            raise UserError(f"delivery={delivery!r}: choose one of {quoted(get_args(Delivery))}")
        if compression not in get_args(Compression):
            raise UserError(
                f"compression={compression!r}: choose one of {quoted(get_args(Compression))}"
            )
        timeout_ms = duration_ns(transaction_timeout, option="transaction_timeout") // _MS_NS
        if not 1000 <= timeout_ms <= _INT32_MAX:
            raise UserError(
                f"transaction_timeout={transaction_timeout!r}: give one second to 24 days"
            )
        batch_bytes = size_bytes(batch_size, option="batch_size")
        if batch_bytes < _BATCH_BYTES_MIN:
            raise UserError(f"batch_size={batch_size!r}: give 1KiB or more")
        self.settings = Settings(
            servers=parse_servers(servers),
            security=Security(options or {}),
            layout=layout,
            exactly_once=delivery == "exactly-once",
            two_phase=two_phase,
            timeout_ms=timeout_ms,
            compression=compression,
            batch_bytes=batch_bytes,
        )

    @property
    def delivery(self) -> Delivery:
        """Exactly once for readers of committed records, unless said otherwise."""
        return "exactly-once" if self.settings.exactly_once else "at-least-once"

    def check(self, schema: pa.Schema) -> None:
        """Ask for the columns in the stream, and for the topic at a broker.

        Raises: UserError, AddressUnreachable.
        """
        layout = self.settings.layout
        layout.check(schema)
        cluster = self.settings.cluster(patience_s=_CHECK_PATIENCE_S)
        try:
            if layout.topic is None:
                cluster.patiently(cluster.brokers)
            else:
                self.settings.partitions(cluster, layout.topic)
        finally:
            cluster.close()

    def writer(self) -> KafkaWriter:
        """Make the writer of one subtask."""
        return KafkaWriter(self.settings)

    def committer(self, job: str, operator: str) -> KafkaCommitter | None:
        """Make the committer of this sink, which is `operator` in `job`."""
        if not self.settings.exactly_once:
            return None
        return KafkaCommitter(self.settings, job=job, operator=operator)
