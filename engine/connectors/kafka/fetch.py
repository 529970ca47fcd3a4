"""Fetch requests and responses, which carry records.

A request of version 11 names topics and opens no session: each names all partitions wanted. The
response is read where it lies: its records are slices of the bytes that came in.

    throttle int32, error int16, session int32, topics [name string, partitions [
        index int32, error int16, high watermark int64, last stable offset int64, log start int64,
        aborted transactions [producer int64, first offset int64], preferred replica int32,
        records bytes]]

An array is an int32 count, -1 null, and its elements; string and bytes have an int16 and an int32
before them.

Source: the documentation of Kafka 4, "Fetch API".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from kafka.protocol.consumer import FetchRequest

from ...contract.errors import HeadraceError
from .cluster import Partition
from .connection import Request

VERSION = 11
_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")


class BadFetch(HeadraceError):
    """A fetch response that cannot be read."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A broker's answer for one partition.

    Attributes:
        error: code; the rest means little when it is not 0.
        end: offset behind the last record of the partition, or behind the last of a decided
            transaction when only committed records were asked for.
        log_start: offset of the oldest record.
        aborted: (producer, first offset) of aborted transactions with records in `records`.
        records: record batches, the last one perhaps cut off.
    """

    partition: Partition
    error: int
    end: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: pa.Buffer


def fetch_request(
    offsets: Mapping[Partition, int],
    *,
    committed: bool,
    wait_ms: int,
    bytes_max: int,
    partition_bytes_max: int,
) -> Request:
    """Ask for records of partitions of one leader, each from an offset on.

    Args:
        committed: leave out what transactions may still abort.
        wait_ms: how long the broker waits for a first record.
        bytes_max: of the response; a larger first batch comes whole.
    """
    topics: dict[str, list[Request]] = {}
    for partition, offset in offsets.items():
        asked = FetchRequest.FetchTopic.FetchPartition(
            partition=partition.index, fetch_offset=offset, partition_max_bytes=partition_bytes_max
        )
        topics.setdefault(partition.topic, []).append(asked)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


def parse_fetch(body: pa.Buffer, *, committed: bool) -> tuple[int, list[Fetched]]:
    """Read a response: the error of the whole, and its partitions. Raises: BadFetch."""
    reader = _Reader(body)
    try:
        _, error, _ = reader.take(_HEAD)
        found = []
        for _ in range(reader.int32()):
            topic = reader.string()
            found += [_partition(reader, topic, committed) for _ in range(reader.int32())]
    except (struct.error, ValueError) as problem:
        raise BadFetch(f"a response to a fetch cannot be read: {problem}") from problem
    return error, found


def _partition(reader: _Reader, topic: str, committed: bool) -> Fetched:
    index, error, high, stable, log_start = reader.take(_PARTITION)
    aborted = tuple(reader.pair() for _ in range(reader.int32()))
    reader.int32()  # the preferred replica, which is asked for by rack alone
    end = stable if committed else high
    return Fetched(Partition(topic, index), error, end, log_start, aborted, reader.bytes())


class _Reader:
    """A place in a response."""

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self._at)
        self._at += form.size
        return values

    def int32(self) -> int:
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(value)

    def pair(self) -> tuple[int, int]:
        first, second = self.take(_ABORTED)
        return first, second

    def string(self) -> str:
        (size,) = struct.unpack_from(">h", self._data, self._at)
        self._at += 2
        return str(self._piece(size).to_pybytes(), "utf-8")

    def bytes(self) -> pa.Buffer:
        return self._piece(max(0, self.int32()))

    def _piece(self, size: int) -> pa.Buffer:
        if not 0 <= size <= self._data.size - self._at:
            raise ValueError(f"{size} bytes at {self._at} of {self._data.size}")
        piece = self._data.slice(self._at, size)
        self._at += size
        return piece
