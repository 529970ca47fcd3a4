"""A Kafka cluster in memory, behind connections that answer at once."""

from __future__ import annotations

import os
import struct
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import pyarrow as pa
from kafka.protocol.consumer import (
    FetchResponse,
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from headrace.engine.connectors.kafka.cluster import Cluster, Partition
from headrace.engine.connectors.kafka.compression import Compression
from headrace.engine.connectors.kafka.connection import (
    Address,
    BrokerLost,
    Connection,
    Request,
    Response,
)
from headrace.engine.connectors.kafka.record_batch import TIMESTAMP, encode
from headrace.engine.connectors.kafka.security import Security

_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass
class Log:
    """A partition.

    Attributes:
        batches: (first offset, offset behind, newest time, bytes).
        aborted: (producer, first offset, offset of the mark).
        stable: last stable offset; None: the end.
    """

    leader: int = 0
    first: int = 0
    end: int = 0
    stable: int | None = None
    batches: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    def append(
        self,
        values: Iterable[bytes],
        *,
        time_ms: int = 1000,
        producer: int = -1,
        compression: Compression = "none",
    ) -> None:
        """Write a batch, part of a transaction if there is a producer."""
        column = pa.array(list(values), pa.binary())
        times = pa.array(range(time_ms, time_ms + len(column)), pa.int64()).view(TIMESTAMP)
        parts = encode(
            column,
            timestamps=times,
            now_ms=0,
            producer=(producer, 0),
            transactional=producer >= 0,
            compression=compression,
        )
        self._write(b"".join(parts), len(column), time_ms + len(column) - 1)

    def mark(self, producer: int, *, first: int, commit: bool) -> None:
        """End a producer's transaction, which began at `first`."""
        key = pa.array([struct.pack(">hh", 0, int(commit))])
        parts = encode(pa.array([bytes(6)]), keys=key, now_ms=0, producer=(producer, 0))
        data = bytearray(b"".join(parts))
        data[22] |= _TRANSACTIONAL | _CONTROL
        data[17:21] = struct.pack(">I", google_crc32c.value(bytes(data[21:])))
        if not commit:
            self.aborted.append((producer, first, self.end))
        self._write(bytes(data), 1, 0)

    def compact(self, offset: int) -> None:
        """Remove the batch that begins at an offset."""
        self.batches = [each for each in self.batches if each[0] != offset]

    def _write(self, data: bytes, count: int, time_ms: int) -> None:
        data = struct.pack(">q", self.end) + data[8:]
        self.batches.append((self.end, self.end + count, time_ms, data))
        self.end += count

    @property
    def last_stable(self) -> int:
        return self.end if self.stable is None else self.stable


@dataclass
class FakeCluster:
    """Brokers 0, 1, ... at ports 9000, 9001, ...; broker 0 coordinates all groups.

    Attributes:
        errors: {partition: codes that its next fetches and offset requests are answered with}.
        topic_errors: {topic: code in metadata}.
        down: brokers that refuse and have lost all connections.
        silent: brokers that take requests and do not answer.
        held: names of requests, and "connect", that wait for `released`.
        waiting: how many wait.
    """

    topics: dict[str, dict[int, Log]] = field(default_factory=dict)
    ids: dict[str, uuid.UUID] = field(default_factory=dict)
    brokers: int = 1
    errors: dict[Partition, list[int]] = field(default_factory=dict)
    topic_errors: dict[str, int] = field(default_factory=dict)
    group_error: int = 0
    down: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    committed: dict[str, dict[Partition, int]] = field(default_factory=dict)
    fetches: int = 0
    bytes_max: int = 1 << 20
    held: set[str] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0

    @property
    def servers(self) -> tuple[Address, ...]:
        return (Address("fake", 9000),)

    def create(self, topic: str, partitions: int) -> dict[int, Log]:
        """Create a topic, or create it again."""
        self.ids[topic] = uuid.uuid4()
        self.topics[topic] = {i: Log(leader=i % self.brokers) for i in range(partitions)}
        return self.topics[topic]

    def connect(self, address: Address, security: Security) -> Connection:
        self._hold("connect")
        return FakeConnection(self, address)

    def _hold(self, what: str) -> None:
        if what in self.held:
            self.waiting += 1
            self.released.wait(60.0)
            self.waiting -= 1

    def client(self) -> Cluster:
        return Cluster(self.servers, Security(), patience_s=0.2, connect=self.connect)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a fake cluster lives in one process")

    def answer(self, node: int, request: Request) -> Response:
        answers: dict[str, Callable[[int, Request], Response]] = {
            "MetadataRequest": self._metadata,
            "ListOffsetsRequest": self._offsets,
            "FetchRequest": self._fetch,
            "FindCoordinatorRequest": self._find,
            "OffsetCommitRequest": self._commit,
            "OffsetFetchRequest": self._group,
        }
        self._hold(request.name)
        return answers[request.name](node, request)

    def _metadata(self, node: int, request: Request) -> Response:
        names = [each.name for each in request.topics or []] or sorted(self.topics)
        kind = MetadataResponse.MetadataResponseTopic
        topics = []
        for name in names:
            error = self.topic_errors.get(name, 0 if name in self.topics else 3)
            logs = {} if error else self.topics[name]
            partitions = [
                kind.MetadataResponsePartition(
                    error_code=0,
                    partition_index=index,
                    leader_id=-1 if log.leader in self.down else log.leader,
                )
                for index, log in logs.items()
            ]
            id_ = self.ids.get(name)
            topics.append(kind(error_code=error, name=name, topic_id=id_, partitions=partitions))
        broker = MetadataResponse.MetadataResponseBroker
        brokers = [
            broker(node_id=i, host="fake", port=9000 + i)
            for i in range(self.brokers)
            if i not in self.down
        ]
        return MetadataResponse(brokers=brokers, topics=topics)

    def _offsets(self, node: int, request: Request) -> Response:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                log = self.topics[topic.name][each.partition_index]
                error = self._error(node, Partition(topic.name, each.partition_index))
                end = log.last_stable if request.isolation_level else log.end
                offset = {-2: log.first, -1: end}.get(each.timestamp)
                if offset is None:
                    newer = [b[0] for b in log.batches if b[2] >= each.timestamp]
                    offset = min(newer, default=-1)
                partitions.append(
                    kind.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, error_code=error, offset=offset
                    )
                )
            topics.append(kind(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    def _fetch(self, node: int, request: Request) -> Response:
        self.fetches += 1
        kind = FetchResponse.FetchableTopicResponse
        topics = []
        for topic in request.topics:
            partitions = [
                self._fetched(node, Partition(topic.topic, each.partition), each, request)
                for each in topic.partitions
            ]
            topics.append(kind(topic=topic.topic, partitions=partitions))
        return FetchResponse(error_code=0, session_id=0, responses=topics)

    def _fetched(self, node: int, partition: Partition, asked: Request, request: Request) -> Any:
        kind = FetchResponse.FetchableTopicResponse.PartitionData
        log = self.topics.get(partition.topic, {}).get(partition.index)
        error = self._error(node, partition)
        if log is None:
            return kind(partition_index=partition.index, error_code=3)
        if not error and not log.first <= asked.fetch_offset <= log.end:
            error = 1
        if error:
            return kind(partition_index=partition.index, error_code=error, high_watermark=-1)
        end = log.last_stable if request.isolation_level else log.end
        found = b""
        behind = asked.fetch_offset
        for first, next_, _, data in log.batches:
            fits = len(found) + len(data) <= self.bytes_max or not found
            if next_ > asked.fetch_offset and first < end and fits:
                found += data
                behind = next_
        aborted = [
            kind.AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first, mark in log.aborted
            if mark >= asked.fetch_offset and first < behind
        ]
        return kind(
            partition_index=partition.index,
            error_code=0,
            high_watermark=log.end,
            last_stable_offset=log.last_stable,
            log_start_offset=log.first,
            aborted_transactions=aborted if request.isolation_level else None,
            records=found + b"cut off"[: len(found)],
        )

    def _error(self, node: int, partition: Partition) -> int:
        log = self.topics.get(partition.topic, {}).get(partition.index)
        if log is not None and log.leader != node:
            return 6
        waiting = self.errors.get(partition)
        return waiting.pop(0) if waiting else 0

    def _find(self, node: int, request: Request) -> Response:
        return FindCoordinatorResponse(error_code=0, node_id=0, host="fake", port=9000)

    def _commit(self, node: int, request: Request) -> Response:
        kind = OffsetCommitResponse.OffsetCommitResponseTopic
        topics = []
        for topic in request.topics:
            answers = []
            for each in topic.partitions:
                if not self.group_error:
                    place = Partition(topic.name, each.partition_index)
                    group = self.committed.setdefault(request.group_id, {})
                    group[place] = each.committed_offset
                answers.append(
                    kind.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=self.group_error
                    )
                )
            topics.append(kind(name=topic.name, partitions=answers))
        return OffsetCommitResponse(topics=topics)

    def _group(self, node: int, request: Request) -> Response:
        return OffsetFetchResponse(topics=[], error_code=self.group_error)


class FakeConnection(Connection):
    """A connection whose answers are there when the request has been sent."""

    def __init__(self, cluster: FakeCluster, address: Address) -> None:
        self.address = address
        self.closed = False
        self._cluster = cluster
        self._node = address.port - 9000
        self._answers: deque[Response] = deque()
        #: Never readable.
        self._number = os.eventfd(0)
        self._check()

    def send(self, request: Request, *, max_version: int | None = None) -> None:
        self._check()
        self._answers.append(self._cluster.answer(self._node, request))

    def receive(self) -> Response:
        self._check()
        return self._answers.popleft()

    def receive_body(self) -> pa.Buffer:
        return pa.py_buffer(bytes(self.receive().encode(version=11)))

    def call(self, request: Request, *, max_version: int | None = None) -> Response:
        assert not self._answers, "an earlier response has not been received"
        self.send(request)
        return self.receive()

    @property
    def waiting(self) -> int:
        return len(self._answers)

    def buffered(self) -> bool:
        return bool(self._answers) and self._node not in self._cluster.silent

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        if not self.closed:
            os.close(self._number)
        self.closed = True
        self._answers.clear()

    def _check(self) -> None:
        if self._node in self._cluster.down or self.closed:
            self.close()
            raise BrokerLost(f"fake broker {self._node} is down")
