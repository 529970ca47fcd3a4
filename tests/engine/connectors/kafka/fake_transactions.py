"""A Kafka cluster in memory that takes transactions, as far as a sink uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from kafka.protocol.admin import DescribeTransactionsResponse, ListTransactionsResponse
from kafka.protocol.consumer import OffsetFetchResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ProduceResponse,
    TxnOffsetCommitResponse,
)

from headrace.engine.connectors.kafka import transactions as t
from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.committer import KafkaCommitter
from headrace.engine.connectors.kafka.connection import Address, Buffer, Request, Response
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.record_batch import batches, decode
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.connectors.kafka.writer import KafkaWriter
from headrace.engine.contract.operators import OperatorContext, Transaction

from .fake import FakeCluster, FakeConnection

_EMPTY, _ABORTED = "Empty", "CompleteAbort"


@dataclass
class _Id:
    """A transactional id.

    Attributes:
        values: of the open transaction, by partition.
        token: offset that the open transaction stores; -1: none.
    """

    producer: int
    epoch: int = -1
    state: str = _EMPTY
    partitions: set[Partition] = field(default_factory=set)
    values: list[tuple[Partition, bytes]] = field(default_factory=list)
    token: int = -1

    def end(self, state: str) -> None:
        self.state = state
        self.partitions, self.values, self.token = set(), [], -1


@dataclass
class FakeTransactions(FakeCluster):
    """Broker 0 coordinates all transactions.

    Attributes:
        asked: how often each kind of request came.
        visible: values of committed transactions.
        refusals: {kind of request: the code that it is answered with}.
    """

    asked: Counter[str] = field(default_factory=Counter)
    visible: list[tuple[Partition, bytes]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    known: dict[str, _Id] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    _refusal: int = 0

    def connect(self, address: Address, security: Security) -> FakeConnection:
        return _Connection(self, address)

    def answer(self, node: int, request: Request) -> Response:
        kind = request.name.removesuffix("Request")
        self.asked[kind] += 1
        self._refusal = self.refusals.get(kind, 0)
        answers: dict[str, Callable[[Request], Response]] = {
            "InitProducerIdRequest": self._init,
            "AddPartitionsToTxnRequest": self._add_partitions,
            "AddOffsetsToTxnRequest": self._add_offsets,
            "TxnOffsetCommitRequest": self._store_token,
            "ProduceRequest": self._produce,
            "EndTxnRequest": self._end,
            "DescribeTransactionsRequest": self._describe,
            "ListTransactionsRequest": self._list,
            "OffsetFetchRequest": self._token,
        }
        if request.name in answers:
            return answers[request.name](request)
        return super().answer(node, request)

    def _init(self, request: Request) -> Response:
        id_ = self.known.setdefault(request.transactional_id, _Id(1000 + len(self.known)))
        id_.epoch += 1
        id_.end(_EMPTY)
        return InitProducerIdResponse(
            error_code=self._refusal, producer_id=id_.producer, producer_epoch=id_.epoch
        )

    def _code(self, id_: str, producer: int, epoch: int) -> int:
        if self._refusal:
            return self._refusal
        known = self.known.get(id_)
        if known is None or known.producer != producer:
            return t.INVALID_PRODUCER_ID_MAPPING
        return 0 if known.epoch == epoch else t.PRODUCER_FENCED

    def _add_partitions(self, request: Request) -> Response:
        id_ = request.v3_and_below_transactional_id
        code = self._code(
            id_, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        )
        kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        topics = []
        for topic in request.v3_and_below_topics:
            if not code:
                self.known[id_].state = t.ONGOING
                self.known[id_].partitions |= {Partition(topic.name, n) for n in topic.partitions}
            results = [
                kind.AddPartitionsToTxnPartitionResult(partition_index=n, partition_error_code=code)
                for n in topic.partitions
            ]
            topics.append(kind(name=topic.name, results_by_partition=results))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _add_offsets(self, request: Request) -> Response:
        code = self._code(request.transactional_id, request.producer_id, request.producer_epoch)
        if not code:
            self.known[request.transactional_id].state = t.ONGOING
        return AddOffsetsToTxnResponse(error_code=code)

    def _store_token(self, request: Request) -> Response:
        id_ = request.transactional_id
        code = self._code(id_, request.producer_id, request.producer_epoch)
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        topics = []
        for topic in request.topics:
            for each in topic.partitions:
                if not code:
                    self.known[id_].token = each.committed_offset
            results = [
                kind.TxnOffsetCommitResponsePartition(
                    partition_index=each.partition_index, error_code=code
                )
                for each in topic.partitions
            ]
            topics.append(kind(name=topic.name, partitions=results))
        return TxnOffsetCommitResponse(topics=topics)

    def _produce(self, request: Request) -> Response:
        kind = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in request.topic_data:
            results = [
                kind.PartitionProduceResponse(
                    index=each.index,
                    error_code=self._take(
                        request.transactional_id, Partition(topic.name, each.index), each.records
                    ),
                    base_offset=0,
                )
                for each in topic.partition_data
            ]
            topics.append(kind(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=topics)

    def _take(self, id_: str, partition: Partition, records: bytes) -> int:
        data = pa.py_buffer(bytes(records))
        (batch,) = batches(data)
        known = self.known[id_]
        if self._refusal:
            return self._refusal
        if batch.producer != known.producer:
            return t.INVALID_PRODUCER_ID_MAPPING
        if partition not in known.partitions:
            return t.INVALID_TXN_STATE
        values = decode(data, [batch]).values.to_pylist()
        known.values += [(partition, value) for value in values]
        return 0

    def _end(self, request: Request) -> Response:
        code = self._code(request.transactional_id, request.producer_id, request.producer_epoch)
        if code:
            return EndTxnResponse(error_code=code)
        known = self.known[request.transactional_id]
        ended = t.COMMITTED if request.committed else _ABORTED
        if known.state != t.ONGOING:
            code = 0 if known.state == ended else t.INVALID_TXN_STATE
            return EndTxnResponse(error_code=code)
        if request.committed:
            self.visible += known.values
            self.tokens[request.transactional_id] = known.token
        known.end(ended)
        return EndTxnResponse(error_code=0)

    def _describe(self, request: Request) -> Response:
        kind = DescribeTransactionsResponse.TransactionState
        states = [
            kind(error_code=0, transactional_id=id_, transaction_state=self.known[id_].state)
            for id_ in request.transactional_ids
        ]
        return DescribeTransactionsResponse(transaction_states=states)

    def _list(self, request: Request) -> Response:
        kind = ListTransactionsResponse.TransactionState
        states = [
            kind(transactional_id=id_, producer_id=known.producer, transaction_state=known.state)
            for id_, known in self.known.items()
            if known.state in request.state_filters
        ]
        return ListTransactionsResponse(error_code=0, transaction_states=states)

    def _token(self, request: Request) -> Response:
        kind = OffsetFetchResponse.OffsetFetchResponseTopic
        number = self.tokens.get(request.group_id, -1)
        partition = kind.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=number, error_code=0
        )
        return OffsetFetchResponse(topics=[kind(name="t", partitions=[partition])], error_code=0)


class _Connection(FakeConnection):
    def send_parts(self, kind: type[Request], version: int, parts: Sequence[Buffer]) -> None:
        self.send(kind.decode(b"".join(map(bytes, parts)), version=version))

    def version(
        self, kind: Request | type[Request], max_version: int | None = None, *, oldest: int = 0
    ) -> int:
        """Every broker is as old as one may be."""
        return oldest


class FakeSink:
    """A sink on a cluster in memory, and a clock that stands."""

    def __init__(self, **layout: str | None) -> None:
        """Write to topic "t"; `layout`: other columns than "text" as value."""
        self.cluster = FakeTransactions()
        self.cluster.create("t", 2)
        given = {"topic": "t", "value": "text", **layout}
        sink = KafkaSink(Layout(**given), "fake:9000")
        self.settings = replace(sink.settings, connect=self.cluster.connect)
        self.now_s = 1000.0
        self.committer = KafkaCommitter(
            self.settings, job="job", operator="out", clock=lambda: self.now_s
        )
        self.committer.own("run", anew=True)

    def writer(self, epoch: int) -> KafkaWriter:
        """Make the writer of an attempt."""
        writer = KafkaWriter(self.settings, clock=lambda: self.now_s)
        writer.open(OperatorContext("job", "out", 0, 1, 128, epoch, owner="run"))
        return writer

    def precommit(self, writer: KafkaWriter, text: str) -> Transaction:
        writer.write(pa.record_batch({"text": [text]}))
        (transaction,) = writer.precommit(1)
        return transaction

    def open(self) -> list[str]:
        return [id_ for id_, known in self.cluster.known.items() if known.state == t.ONGOING]

    @property
    def visible(self) -> list[bytes]:
        return [value for _, value in self.cluster.visible]
