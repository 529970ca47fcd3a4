"""Fetches, compared with another implementation of Kafka's messages."""

from __future__ import annotations

import pyarrow as pa
import pytest
from kafka.protocol.consumer import FetchResponse

from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.fetch import BadFetch, Fetched, fetch_request, parse_fetch

KIND = FetchResponse.FetchableTopicResponse


def response() -> bytes:
    aborted = [KIND.PartitionData.AbortedTransaction(producer_id=8, first_offset=70)]
    partitions = [
        KIND.PartitionData(
            partition_index=4,
            error_code=0,
            high_watermark=99,
            last_stable_offset=90,
            log_start_offset=60,
            aborted_transactions=aborted,
            records=b"records",
        ),
        KIND.PartitionData(
            partition_index=5,
            error_code=6,
            high_watermark=-1,
            aborted_transactions=None,
            records=None,
        ),
    ]
    topics = [KIND(topic="größe", partitions=partitions), KIND(topic="empty", partitions=[])]
    return bytes(FetchResponse(error_code=0, session_id=0, responses=topics).encode(version=11))


def test_a_response_is_read_where_it_lies() -> None:
    error, (first, second) = parse_fetch(pa.py_buffer(response()), committed=True)
    assert error == 0
    assert first == Fetched(Partition("größe", 4), 0, 90, 60, ((8, 70),), pa.py_buffer(b"records"))
    assert (second.partition, second.error, second.records.size) == (Partition("größe", 5), 6, 0)
    _, (dirty, _) = parse_fetch(pa.py_buffer(response()), committed=False)
    assert dirty.end == 99


def test_a_response_that_is_cut_off_is_refused() -> None:
    data = response()
    for size in range(len(data)):
        with pytest.raises(BadFetch):
            parse_fetch(pa.py_buffer(data[:size]), committed=True)


def test_a_request_asks_for_partitions_of_several_topics() -> None:
    request = fetch_request(
        {Partition("t", 0): 5, Partition("u", 1): 6, Partition("t", 2): 7},
        committed=True,
        wait_ms=100,
        bytes_max=1000,
        partition_bytes_max=500,
    )
    asked = {
        (topic.topic, each.partition): each.fetch_offset
        for topic in request.topics
        for each in topic.partitions
    }
    assert asked == {("t", 0): 5, ("u", 1): 6, ("t", 2): 7}
    assert (request.isolation_level, request.max_wait_ms, request.max_bytes) == (1, 100, 1000)
