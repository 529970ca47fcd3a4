"""What the driver finds out when a pipeline is built: partitions, topic ids, offsets, rights.

Everything that would fail a job in its first seconds is tried here: the brokers, the topics' names,
the right to read them, a start that lies before the oldest record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from kafka.protocol.metadata import MetadataRequest

from ...contract.errors import UserError
from ...contract.suggestion import did_you_mean, quoted
from .cluster import (
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerError,
    Cluster,
    Partition,
    Topic,
)
from .fetch import VERSION, fetch_request, parse_fetch
from .offsets import EARLIEST, LATEST, check_group, list_offsets
from .progress import Progress

#: Where to begin: an end, a time, or an offset for each partition.
Start: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[Partition, int]

#: Codes of missing rights, and what the right is for.
_REFUSALS = {29: "topic", 30: "group", 31: "cluster"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Partitions as they are when the pipeline is built.

    Attributes:
        partitions: each with the offset to begin at.
        stops: {partition: offset to end at}, for a source that ends.
        topic_ids: {topic: id}; the id is empty where brokers tell none.
    """

    partitions: tuple[Progress, ...]
    stops: Mapping[Partition, int]
    topic_ids: Mapping[str, str]


def plan(
    cluster: Cluster,
    topics: Sequence[str],
    *,
    start: Start,
    bounded: bool,
    committed: bool,
    group: str | None,
) -> Plan:
    """Ask the cluster. Raises: UserError, AddressUnreachable."""
    try:
        described = cluster.patiently(lambda: cluster.topics(topics))
        for topic in described.values():
            _check_topic(cluster, topic)
        partitions = [
            Partition(topic.name, index)
            for topic in described.values()
            for index in sorted(topic.leaders)
        ]
        stops = _at(cluster, partitions, LATEST, committed) if bounded else {}
        starts = _starts(cluster, partitions, start, committed)
        for each in partitions:
            _try_fetch(cluster, each, starts[each], committed)
        if group is not None:
            check_group(cluster, group)
    except BrokerError as error:
        raise UserError(_refusal(error)) from error
    ids = {topic.name: topic.id for topic in described.values()}
    found = [Progress(each, starts[each], ids[each.topic]) for each in sorted(partitions)]
    return Plan(tuple(found), stops, ids)


def _check_topic(cluster: Cluster, topic: Topic) -> None:
    if topic.error == UNKNOWN_TOPIC_OR_PARTITION:
        # Without a name all topics are described, if we may see them.
        asked = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = cluster.patiently(lambda: cluster.any(asked, max_version=9))
        names = sorted(each.name for each in answer.topics if not each.is_internal)
        raise UserError(
            f"Kafka at {cluster} has no topic {topic.name!r}: {did_you_mean(topic.name, names)}"
        )
    if topic.error != NO_ERROR:
        raise BrokerError(f"topic {topic.name!r} of Kafka at {cluster}", topic.error)


def _at(
    cluster: Cluster, partitions: Sequence[Partition], time: int, committed: bool
) -> dict[Partition, int]:
    times = dict.fromkeys(partitions, time)
    return cluster.patiently(lambda: list_offsets(cluster, times, committed=committed))


def _starts(
    cluster: Cluster, partitions: Sequence[Partition], start: Start, committed: bool
) -> Mapping[Partition, int]:
    """Return offsets to begin at. The oldest record is found when reading begins: it may have been
    deleted by then.
    """
    if start == "earliest":
        return dict.fromkeys(partitions, EARLIEST)
    if start == "latest":
        return _at(cluster, partitions, LATEST, committed)
    if isinstance(start, datetime):
        found = _at(cluster, partitions, int(start.timestamp() * 1000), committed)
        # Without so new a record, the next one is the first.
        ends = _at(cluster, partitions, LATEST, committed)
        return {each: found[each] if found[each] >= 0 else ends[each] for each in partitions}
    assert not isinstance(start, str), start
    for each in partitions:
        if each not in start:
            raise UserError(f"read.kafka: start= has no offset for partition {each}: name them all")
    for each in start:
        if each not in partitions:
            raise UserError(f"read.kafka: start= names {each}, and there is no such partition")
    return start


def _try_fetch(cluster: Cluster, partition: Partition, start: int, committed: bool) -> None:
    """Read a first record, and throw it away. Raises: BrokerError, UserError."""

    def attempt() -> None:
        first = _offset(cluster, partition, EARLIEST)
        offset = first if start == EARLIEST else start
        end = _offset(cluster, partition, LATEST)
        if not first <= offset <= end:
            raise UserError(
                f"read.kafka: start= names offset {offset} of {partition}, which has records"
                f" from {first} on and ends before {end}"
            )
        request = fetch_request(
            {partition: offset},
            committed=committed,
            wait_ms=0,
            bytes_max=1,
            partition_bytes_max=1,
        )
        connection = cluster.at(cluster.leader(partition))
        connection.send(request, max_version=VERSION)
        code, answers = parse_fetch(connection.receive_body(), committed=committed)
        for error in (code, *(each.error for each in answers)):
            # The oldest records may have been deleted this moment.
            if error not in (NO_ERROR, OFFSET_OUT_OF_RANGE):
                cluster.forget_leaders()
                raise BrokerError(f"partition {partition} of Kafka at {cluster}", error)

    cluster.patiently(attempt)


def _offset(cluster: Cluster, partition: Partition, time: int) -> int:
    return list_offsets(cluster, {partition: time}, committed=False)[partition]


def parse_start(start: object, topics: Sequence[str]) -> Start:
    """Check a user's `start=`; offsets are given by (topic, partition), or by partition where there
    is one topic. Raises: UserError.
    """
    match start:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case datetime() if start.tzinfo is not None:
            return start
        case datetime():
            raise UserError(
                f"read.kafka: start={start!r} has no time zone: give one, as in"
                " datetime(2026, 1, 1, tzinfo=UTC)"
            )
        case Mapping():
            return dict(_start_at(key, offset, topics) for key, offset in start.items())
    raise UserError(
        f'read.kafka: start={start!r}: give "earliest", "latest", a datetime, or a dictionary of'
        " offsets"
    )


def _start_at(key: object, offset: object, topics: Sequence[str]) -> tuple[Partition, int]:
    if isinstance(key, int) and len(topics) == 1:
        key = (topics[0], key)
    match key, offset:
        case (str(topic), int(index)), int(at) if index >= 0 and at >= 0:
            if topic not in topics:
                raise UserError(
                    f"read.kafka: start= names topic {topic!r}, and {quoted(topics)} are read"
                )
            return Partition(topic, index), at
    raise UserError(
        f"read.kafka: start= has {key!r}: {offset!r}, and takes {{(topic, partition): offset}}"
    )


def _refusal(error: BrokerError) -> str:
    kind = _REFUSALS.get(error.code)
    if kind is None:
        return str(error)
    return (
        f"{error}: the credentials given may not read there; let an administrator grant READ and"
        f" DESCRIBE on the {kind}"
    )
