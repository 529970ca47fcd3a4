"""Offsets that a cluster knows: the ends of partitions, offsets by time, and those of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka.protocol.consumer import ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest

from .cluster import GROUP, NO_ERROR, BrokerError, Cluster, Partition
from .connection import BrokerLost, Request, Response

#: In place of a time: the offset of the oldest record, and the one behind the newest.
EARLIEST = -2
LATEST = -1
#: Newest versions that name topics, and not their ids.
_OFFSET_COMMIT_VERSION = 9
_OFFSET_FETCH_VERSION = 7
_LIST_VERSION = 7


def list_offsets(
    cluster: Cluster, times: Mapping[Partition, int], *, committed: bool
) -> dict[Partition, int]:
    """Find the first offset of each partition at or after a time, in milliseconds since 1970.

    Without such a record the offset is -1. With `committed`, the newest offset is the one behind
    the last decided transaction.

    Raises: BrokerLost; BrokerError: of one of the partitions.
    """
    by_leader: dict[object, list[Partition]] = {}
    for partition in times:
        by_leader.setdefault(cluster.leader(partition), []).append(partition)
    found: dict[Partition, int] = {}
    for partitions in by_leader.values():
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(committed),
            topics=[_asked(topic, own, times) for topic, own in _by_topic(partitions).items()],
        )
        try:
            connection = cluster.at(cluster.leader(partitions[0]))
            answer = connection.call(request, max_version=_LIST_VERSION)
        except BrokerLost:
            cluster.forget_leaders()
            raise
        for topic in answer.topics:
            for each in topic.partitions:
                partition = Partition(topic.name, each.partition_index)
                if each.error_code:
                    cluster.forget_leaders()
                    raise BrokerError(f"partition {partition} of {cluster}", each.error_code)
                found[partition] = each.offset
    return found


def _asked(topic: str, partitions: list[Partition], times: Mapping[Partition, int]) -> Request:
    asked = ListOffsetsRequest.ListOffsetsTopic
    return asked(
        name=topic,
        partitions=[
            asked.ListOffsetsPartition(partition_index=each.index, timestamp=times[each])
            for each in partitions
        ],
    )


def check_group(cluster: Cluster, group: str) -> None:
    """Ask the coordinator of a group whether we may. Raises: BrokerError, AddressUnreachable."""
    asked = OffsetFetchRequest(group_id=group, topics=[], require_stable=False)
    answer = cluster.at_coordinator(GROUP, group, asked, max_version=_OFFSET_FETCH_VERSION)
    if answer.error_code:
        raise BrokerError(f"group {group!r} of {cluster}", answer.error_code)


def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[Partition, int], *, patience_s: float
) -> None:
    """Store offsets with a group that has no members.

    Raises: BrokerError, AddressUnreachable.
    """
    asked = OffsetCommitRequest.OffsetCommitRequestTopic
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            asked(
                name=topic,
                partitions=[
                    asked.OffsetCommitRequestPartition(
                        partition_index=each.index,
                        committed_offset=offsets[each],
                        committed_metadata="",
                    )
                    for each in partitions
                ],
            )
            for topic, partitions in _by_topic(offsets).items()
        ],
    )
    answer = cluster.at_coordinator(
        GROUP,
        group,
        request,
        max_version=_OFFSET_COMMIT_VERSION,
        errors=_commit_errors,
        patience_s=patience_s,
    )
    for code in _commit_errors(answer):
        if code != NO_ERROR:
            raise BrokerError(f"offsets of group {group!r} of {cluster}", code)


def _commit_errors(answer: Response) -> Iterable[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    topics: dict[str, list[Partition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics
