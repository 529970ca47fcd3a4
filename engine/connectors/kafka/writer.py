"""Writes the records of one subtask into a Kafka transaction for each checkpoint.

The transaction is begun with its first record, in a slot whose last transaction was seen committed
(`transactions.py`). Small batches are gathered until they fill a record batch or a checkpoint asks
for them. At pre-commit all records have been acknowledged, and the transaction carries its token.

A checkpoint waits for the pre-commit, and not for what comes before: so a transaction gets its
token, and the partitions that it will likely write to, when it begins. The pre-commit sends the
last records, asks meanwhile whether the transaction is still open, and waits for both answers.

Without transactions ("at-least-once") each batch is sent as it comes, and a pre-commit waits for
the acknowledgements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from ...contract.errors import HeadraceError, UserError
from ...contract.operators import OperatorContext, RestoredState, StateSnapshot, Transaction
from . import transactions as t
from .cluster import BrokerError, Cluster, Partition, error_name
from .outgoing import Partitioner, Rows
from .producer import Outgoing, Producer
from .record_batch import cut, encode
from .sink_settings import LOST_HINT, WRITE_PATIENCE_S, Settings

_log = logging.getLogger(__name__)

_MESSAGE_TOO_LARGE = 10
_RECORD_LIST_TOO_LARGE = 18
#: A record batch of this many bytes is sent without waiting for more.
_GATHERED_BYTES = 1 << 20
#: Subtasks begin their turn of partitions apart.
_SPREAD = 7


@dataclass(slots=True)
class _Slot:
    """A transactional id.

    Attributes:
        number: of its newest transaction.
        waits: the transaction is pre-committed, and was not seen committed.
    """

    id: str
    number: int = 0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class _Open:
    """The transaction that is written to."""

    slot: _Slot
    transaction: t.Transaction
    begun_s: float


class KafkaWriter:
    """Writes one transaction a checkpoint. Keeps no state: transactions carry all."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._context: OperatorContext | None = None
        self._clusters: list[Cluster] = []
        self._slots: list[_Slot] = []
        self._open: _Open | None = None
        self._added: set[Partition] = set()
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        #: {topic: how many partitions it has}.
        self._partitions: dict[str, int] = {}
        self._producer_id = (-1, -1)
        self._warned = False

    def open(self, context: OperatorContext) -> None:
        """Connect to nothing yet."""
        settings = self._settings
        self._context = context
        self._cluster, links = self._clusters = [settings.cluster(), settings.cluster()]
        self._producer = Producer(self._cluster, links, patience_s=WRITE_PATIENCE_S)
        turn = _SPREAD * context.index
        self._partitioner = Partitioner(settings.layout.partition, turn)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Gather records, and send them when they fill a record batch. Raises: HeadraceError."""
        if not self._gathered:
            with self._telling():
                self._begin()
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= _GATHERED_BYTES or not self._settings.exactly_once:
            self._send_gathered()
        self._warn_of_age()

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Wait until all records are written. Raises: HeadraceError."""
        self._send_gathered()
        with self._telling():
            if self._open is not None and self._added:
                t.check_open(self._cluster, self._open.transaction, min(self._added))
            self._producer.flush()
        if self._open is None or not self._added:
            return ()
        open_, self._open = self._open, None
        open_.slot.waits = True
        return (self._described(open_),)

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Close the connections. The committer aborts what is left open."""
        for cluster in self._clusters:
            cluster.close()

    def _described(self, open_: _Open) -> Transaction:
        transaction, number = open_.transaction, open_.slot.number
        payload: dict[str, str | int] = {
            "id": transaction.id,
            "producer": transaction.producer,
            "epoch": transaction.epoch,
            "number": number,
            "begun": int(open_.begun_s),
            "timeless": int(transaction.timeless),
        }
        return Transaction(f"{transaction.id}-{number}", payload)

    def _send_gathered(self) -> None:
        if not self._gathered:
            return
        batches, self._gathered, self._gathered_bytes = self._gathered, [], 0
        table = pa.Table.from_batches(batches).combine_chunks()
        with self._telling():
            for batch in table.to_batches():
                for topic, part in self._settings.layout.topics(batch):
                    self._send(topic, part)

    def _send(self, topic: str, batch: pa.RecordBatch) -> None:
        """Send records of one topic, a record batch of each partition at a time."""
        rows = self._settings.layout.rows(batch)
        count = self._count(topic)
        parts = list(self._partitioner.split(topic, count, batch, rows))
        self._add({partition for partition, _ in parts})
        cuts = [(partition, rows, self._cut(rows)) for partition, rows in parts]
        while cuts:
            due = [(each, next(each[2], None)) for each in cuts]
            ready = [(partition, rows, part) for (partition, rows, _), part in due if part]
            if ready:
                self._producer.send([self._encoded(p, r.slice(part)) for p, r, part in ready])
            cuts = [each for each, part in due if part]

    def _cut(self, rows: Rows) -> Iterator[slice]:
        return cut(rows.values, rows.keys, rows.headers, bytes_max=self._settings.batch_bytes)

    def _encoded(self, partition: Partition, rows: Rows) -> Outgoing:
        records = encode(
            rows.values,
            keys=rows.keys,
            timestamps=rows.timestamps,
            headers=rows.headers,
            now_ms=int(self._clock() * 1000),
            compression=self._settings.compression,
            producer=self._producer_id,
            sequence=self._producer.sequence(partition, len(rows.values)),
            transactional=self._settings.exactly_once,
        )
        return Outgoing(partition, records)

    def _begin(self) -> None:
        """Begin a transaction, or take a producer id, unless there is one."""
        settings = self._settings
        if not settings.exactly_once:
            if self._producer_id[0] < 0:
                self._producer_id = t.plain_producer(self._cluster)
                self._producer.begin(None)
            return
        if self._open is not None:
            return
        slot = self._free_slot()
        transaction = t.begin(
            self._cluster, slot.id, settings.timeout_ms, two_phase=settings.two_phase
        )
        slot.number += 1
        self._producer_id = (transaction.producer, transaction.epoch)
        self._producer.begin(slot.id)
        self._added.clear()
        # Topics may have gained partitions.
        self._partitions.clear()
        self._open = _Open(slot, transaction, self._clock())
        self._warned = False
        if (topic := settings.layout.topic) is not None:
            self._add(self._partitioner.likely(topic, self._count(topic)))

    def _free_slot(self) -> _Slot:
        """Return a slot whose transaction has committed, or a new one."""
        for slot in self._slots:
            if slot.waits:
                state = t.state(self._cluster, slot.id)
                if state not in (t.COMMITTED, *t.UNDECIDED):
                    raise HeadraceError(
                        f"transaction {slot.id!r} waited for its commit and is {state}: {LOST_HINT}"
                    )
                slot.waits = state != t.COMMITTED
            if not slot.waits:
                return slot
        context = self._opened()
        family = t.Family(context.job, context.operator)
        id_ = family.id(context.owner, context.epoch, context.index, len(self._slots))
        self._slots.append(_Slot(id_))
        return self._slots[-1]

    def _add(self, partitions: set[Partition]) -> None:
        """Make partitions part of the open transaction, which gets its token with the first."""
        missing = partitions - self._added
        if self._open is None or not missing:
            return
        t.add_partitions(self._cluster, self._open.transaction, missing)
        if not self._added:
            number = self._open.slot.number
            t.store_token(self._cluster, self._open.transaction, number, min(missing))
        self._added |= missing

    def _count(self, topic: str) -> int:
        """Return how many partitions a topic has. Raises: HeadraceError."""
        if topic not in self._partitions:
            self._partitions[topic] = self._settings.partitions(self._cluster, topic)
        return self._partitions[topic]

    def _warn_of_age(self) -> None:
        """Warn of a transaction that no checkpoint has closed for half of its time."""
        settings = self._settings
        if self._open is None or self._warned or self._open.transaction.timeless:
            return
        age_s = self._clock() - self._open.begun_s
        if age_s > settings.timeout_ms / 2000:
            self._warned = True
            _log.warning(
                "sink %r: transaction %s has been open for %.0f s without a checkpoint; Kafka"
                " aborts it after %.0f s, and the job starts over from its last checkpoint",
                self._opened().operator,
                self._open.transaction.id,
                age_s,
                settings.timeout_ms / 1000,
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn errors into one sentence of this sink."""
        try:
            yield
        except UserError:
            raise
        except BrokerError as error:
            raise HeadraceError(f"{self._where()}: {self._sentence(error)}") from error
        except HeadraceError as error:
            raise type(error)(f"{self._where()}: {error}") from error

    def _where(self) -> str:
        return f"sink {self._opened().operator!r}"

    def _sentence(self, error: BrokerError) -> str:
        settings = self._settings
        if error.code in (_MESSAGE_TOO_LARGE, _RECORD_LIST_TOO_LARGE):
            return (
                f"{error.what}: Kafka refuses a record batch as too large"
                f" ({error_name(error.code)}); batches hold up to"
                f" batch_size={settings.batch_bytes} bytes, or one record that is larger: lower"
                " batch_size=, or raise the topic's max.message.bytes"
            )
        if error.code in t.OVER and self._open is not None:
            age_s = self._clock() - self._open.begun_s
            return (
                f"Kafka has ended the open transaction {self._open.transaction.id!r} after"
                f" {age_s:.0f} s: it was open for longer than"
                f" transaction_timeout={settings.timeout_ms / 1000:g} s, or another writer has"
                " taken its id"
            )
        return settings.sentence(error)

    def _opened(self) -> OperatorContext:
        assert self._context is not None, "open() comes first"
        return self._context
