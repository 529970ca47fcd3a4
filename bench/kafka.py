"""How much processor time the Kafka client takes: records to a broker, and back into Arrow; and how
long the sink's pre-commits take.

    headrace bench kafka --servers localhost:9092

Batches are encoded and sent to a topic of two partitions, which is deleted at the end, and read
back through the reader of `hr.read.kafka`. Then the sink's whole writer and its pre-commits are
measured (`kafka_sink.py`). Only this process's processor time counts, since a broker on the same
machine takes its share; the time until the last record is given as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest

from headrace.engine.connectors.kafka.cluster import BrokerError, Cluster, Partition, parse_servers
from headrace.engine.connectors.kafka.compression import Compression
from headrace.engine.connectors.kafka.connection import Address, Connection
from headrace.engine.connectors.kafka.offsets import LATEST, list_offsets
from headrace.engine.connectors.kafka.produce import send_produce
from headrace.engine.connectors.kafka.record_batch import encode
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.connectors.kafka.source import KafkaSource
from headrace.engine.connectors.kafka.values import Rows
from headrace.engine.contract.operators import OperatorContext, SourceStatus

from .kafka_sink import time_checkpoints, write

_BATCH_ROWS = 8192
_PARTITIONS = 2
_UNDER_WAY_MAX = 4
_ADMIN_TIMEOUT_MS = 30_000
#: Newest versions that name topics, and not their ids.
_DELETE_VERSION = 5


def run(
    *,
    servers: str,
    records: int,
    value_bytes: int,
    compression: Compression,
    patience_s: float,
    rate: float,
    seconds: float,
) -> dict[str, Any]:
    """Write and read `records`, rounded up to whole batches.

    Args:
        rate: records per second while pre-commits are timed, for so many `seconds`.

    Returns one flat object with the keys of docs/cli.md, `bench kafka`.

    Raises: UserError, AddressUnreachable, BrokerError.
    """
    batches = -(-records // _BATCH_ROWS)
    cluster = Cluster(parse_servers(servers), Security(), patience_s=patience_s)
    with _topic(cluster) as topic:
        written = _timed(lambda: _write(cluster, topic, batches, value_bytes, compression))
        source = KafkaSource(
            topics=(topic,),
            servers=cluster.servers,
            bounded=True,
            rows=Rows(("key", "value", "timestamp", "partition", "offset")),
        )
        _ = source.schema
        read = _timed(lambda: _read(source))
        values = _values(value_bytes)
        sink, keyed = (
            _timed(partial(write, servers, topic, values, batches, compression, key=key))
            for key in (False, True)
        )
        checkpoints = time_checkpoints(
            servers,
            topic,
            value_bytes=value_bytes,
            compression=compression,
            rate=rate,
            seconds=seconds,
        )
    found = {"bench": "kafka", "compression": compression, "value_bytes": value_bytes}
    timed = {"write": written, "read": read, "sink": sink, "sink_keyed": keyed}
    for word, (count, wall_s, processor_s) in timed.items():
        found[f"{word}_per_processor_s"] = round(count / processor_s)
        found[f"{word}_per_s"] = round(count / wall_s)
    correct = written[0] == read[0] == batches * _BATCH_ROWS
    return {**found, **checkpoints, "records": written[0], "correct": correct}


def _timed(work: Any) -> tuple[int, float, float]:
    """Return records, seconds, and seconds of this process's processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    count: int = work()
    return count, time.perf_counter() - wall, time.process_time() - processor


@contextmanager
def _topic(cluster: Cluster) -> Iterator[str]:
    """Create a topic, and delete it at the end."""
    topic = f"headrace-bench-{time.time_ns()}"
    asked = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=_PARTITIONS, replication_factor=1, assignments=[], configs=[]
    )
    create = CreateTopicsRequest(topics=[asked], timeout_ms=_ADMIN_TIMEOUT_MS, validate_only=False)
    answer = cluster.patiently(lambda: cluster.any(create))
    for each in answer.topics:
        if each.error_code:
            raise BrokerError(f"topic {topic!r} cannot be created", each.error_code)
    try:
        # A new partition's leader does not lead at once.
        ends = {Partition(topic, index): LATEST for index in range(_PARTITIONS)}
        cluster.patiently(lambda: list_offsets(cluster, ends, committed=False))
        yield topic
    finally:
        delete = DeleteTopicsRequest(topic_names=[topic], timeout_ms=_ADMIN_TIMEOUT_MS)
        cluster.patiently(lambda: cluster.any(delete, max_version=_DELETE_VERSION))
        cluster.close()


def _write(
    cluster: Cluster, topic: str, batches: int, value_bytes: int, compression: Compression
) -> int:
    values = _values(value_bytes)
    connections: dict[Address, Connection] = {}
    for turn in range(batches):
        partition = Partition(topic, turn % _PARTITIONS)
        leader = cluster.leader(partition)
        if leader not in connections:
            connections[leader] = cluster.connect(leader)
        batch = encode(values, now_ms=time.time_ns() // 1_000_000, compression=compression)
        send_produce(connections[leader], {partition: batch})
        if connections[leader].waiting == _UNDER_WAY_MAX:
            _check(connections[leader].receive())
    for connection in connections.values():
        while connection.waiting:
            _check(connection.receive())
        connection.close()
    return batches * len(values)


def _values(size: int) -> pa.Array:
    """Make values of which half the bytes are random: they compress to about half."""
    rng = np.random.default_rng(1)
    content = np.zeros((_BATCH_ROWS, size), np.uint8)
    content[:, : size // 2] = rng.integers(0, 256, (_BATCH_ROWS, size // 2), dtype=np.uint8)
    offsets = np.arange(_BATCH_ROWS + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), _BATCH_ROWS, buffers)


def _check(answer: Any) -> None:
    for topic in answer.responses:
        for each in topic.partition_responses:
            if each.error_code:
                raise BrokerError(f"a write to {topic.name}-{each.index}", each.error_code)


def _read(source: KafkaSource) -> int:
    reader = source.reader()
    reader.open(OperatorContext("bench", "kafka", 0, 1, 128, 1))
    count = 0
    status = SourceStatus.MORE
    while status is not SourceStatus.END:
        polled = reader.poll(_BATCH_ROWS)
        reader.commit()
        count += sum(batch.num_rows for batch in polled.batches)
        status = polled.status
    reader.close()
    return count
