"""Produce requests, which carry record batches; sent in parts, so that records are not copied.

    transactional id string, acks int16, timeout int32, topics [name string, partitions [
        index int32, records bytes]]

An array is an int32 count and its elements; string and bytes have an int16, -1 null, and an int32
before them.

Source: the documentation of Kafka 4, "Produce API", version 8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa
from kafka.protocol.producer import ProduceRequest

from .cluster import Partition
from .connection import Buffer, Connection

VERSION = 8
#: All replicas in sync have the records.
_ACKS_ALL = -1
_TIMEOUT_MS = 30_000


def send_produce(
    connection: Connection,
    batches: Mapping[Partition, Sequence[pa.Buffer]],
    *,
    transactional_id: str | None = None,
    timeout_ms: int = _TIMEOUT_MS,
) -> None:
    """Send record batches, each in the parts of `record_batch.encode`, one batch a partition.

    The response to `receive` has an error code and a base offset for each partition.

    Raises: BrokerLost, UserError.
    """
    topics: dict[str, list[Partition]] = {}
    for partition in batches:
        topics.setdefault(partition.topic, []).append(partition)
    head = _string(transactional_id) + struct.pack(">hii", _ACKS_ALL, timeout_ms, len(topics))
    parts: list[Buffer] = [head]
    for topic, partitions in topics.items():
        parts.append(_string(topic) + struct.pack(">i", len(partitions)))
        for partition in partitions:
            records = batches[partition]
            size = sum(part.size for part in records)
            parts += [struct.pack(">ii", partition.index, size), *records]
    connection.send_parts(ProduceRequest, VERSION, parts)


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    return struct.pack(">h", len(data)) + data
