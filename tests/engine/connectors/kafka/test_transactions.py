"""Transactions that one process begins and another one decides, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka import transactions as t
from headrace.engine.connectors.kafka.cluster import (
    NO_ERROR,
    BrokerError,
    Cluster,
    Partition,
    parse_servers,
)
from headrace.engine.connectors.kafka.producer import Outgoing, Producer
from headrace.engine.connectors.kafka.record_batch import encode
from headrace.engine.connectors.kafka.security import Security
from tests.services.kafka import Kafka
from tests.services.process import Unavailable, wait_for

TIMEOUT_MS = 60_000


def client(kafka: Kafka) -> Cluster:
    return Cluster(parse_servers(kafka.address), Security())


@pytest.fixture
def cluster(kafka: Kafka) -> Iterator[Cluster]:
    made = client(kafka)
    yield made
    made.close()


@pytest.fixture
def partition(kafka: Kafka) -> Partition:
    return Partition(kafka.create_topic(f"transactions-{time.time_ns()}", 1), 0)


@pytest.fixture
def id_(partition: Partition) -> str:
    return t.Family("job", partition.topic).id("run", 1, 0, 0)


def write(
    cluster: Cluster, id_: str, partition: Partition, number: int, text: bytes
) -> t.Transaction:
    """Write a transaction of one record and its token, ready to be decided."""
    transaction = t.begin(cluster, id_, TIMEOUT_MS, two_phase=False)
    t.add_partitions(cluster, transaction, [partition])
    links = Cluster(cluster.servers, Security())
    producer = Producer(cluster, links, patience_s=30.0)
    producer.begin(id_)
    records = encode(
        pa.array([text], pa.binary()),
        now_ms=0,
        producer=(transaction.producer, transaction.epoch),
        sequence=0,
        transactional=True,
    )
    producer.send([Outgoing(partition, records)])
    t.store_token(cluster, transaction, number, partition)
    producer.flush()
    links.close()
    return transaction


def test_an_id_tells_run_and_epoch_and_no_name_hides_another() -> None:
    id_ = t.Family("a.b", "c").id("run", 7, 3, 1)
    assert t.epoch_of(id_, t.Family("a.b", "c").of_run("run")) == 7
    assert t.epoch_of(id_, t.Family("a.b", "c").of_run("other")) is None
    assert not id_.startswith(t.Family("a", "b").prefix)
    assert t.Family("a", "b.c").prefix != t.Family("a.b", "c").prefix


@pytest.mark.services
def test_another_process_commits_and_a_repeated_commit_says_so(
    kafka: Kafka, cluster: Cluster, partition: Partition, id_: str
) -> None:
    transaction = write(cluster, id_, partition, 1, b"one")
    assert t.state(cluster, id_) == t.ONGOING
    assert t.open_ids(cluster, id_) == [id_]
    other = client(kafka)
    assert [t.end(other, transaction, commit=True) for _ in range(3)] == [NO_ERROR] * 3
    assert kafka.consume(partition.topic) == ["one"]
    assert t.token(other, id_) == 1
    assert t.state(cluster, id_) == t.COMMITTED
    other.close()


@pytest.mark.services
def test_a_commit_repeated_after_the_id_was_used_again_is_told_by_the_token(
    cluster: Cluster, partition: Partition, id_: str
) -> None:
    first = write(cluster, id_, partition, 1, b"one")
    assert t.end(cluster, first, commit=True) == NO_ERROR
    second = write(cluster, id_, partition, 2, b"two")
    assert t.end(cluster, first, commit=True) in t.OVER
    # Not `require_stable`: the second transaction is open, and may stay so.
    assert t.token(cluster, id_) == 1
    assert t.end(cluster, second, commit=True) == NO_ERROR
    wait_for(lambda: t.token(cluster, id_) == 2, "the second token")


@pytest.mark.services
def test_an_aborted_transaction_leaves_no_token_and_shuts_its_writer_out(
    kafka: Kafka, cluster: Cluster, partition: Partition, id_: str
) -> None:
    transaction = write(cluster, id_, partition, 1, b"one")
    t.abort(cluster, id_)
    assert t.open_ids(cluster, id_) == []
    assert t.end(cluster, transaction, commit=True) in t.OVER
    assert t.token(cluster, id_) == -1
    with pytest.raises(BrokerError) as refused:
        t.add_partitions(cluster, transaction, [partition])
    assert refused.value.code in t.OVER
    assert kafka.consume(partition.topic) == []


@pytest.mark.services
def test_a_transaction_outlives_its_broker(
    kafka: Kafka, cluster: Cluster, partition: Partition, id_: str
) -> None:
    transaction = write(cluster, id_, partition, 1, b"one")
    kafka.kill()
    kafka.restart()
    assert t.end(cluster, transaction, commit=True) == NO_ERROR
    assert kafka.consume(partition.topic) == ["one"]


@pytest.mark.services
def test_an_unknown_id_has_neither_state_nor_token(cluster: Cluster, id_: str) -> None:
    assert t.state(cluster, id_) == t.UNKNOWN
    assert t.token(cluster, id_) == -1


@pytest.mark.services
def test_a_broker_that_offers_two_phase_commit_never_times_a_transaction_out() -> None:
    settings = {
        "transaction.two.phase.commit.enable": "true",
        "unstable.api.versions.enable": "true",
    }
    kafka = Kafka("kafka-two-phase", settings)
    try:
        kafka.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        cluster = client(kafka)
        partition = Partition(kafka.create_topic("timeless", 1), 0)
        id_ = "job.out.run.1.0-0"
        transaction = t.begin(cluster, id_, 1_000, two_phase=True)
        assert transaction.timeless
        t.add_partitions(cluster, transaction, [partition])
        # Its twin, with the same limit and without two-phase commit, shows when the limit is over.
        twin = t.begin(cluster, "twin", 1_000, two_phase=False)
        t.add_partitions(cluster, twin, [partition])
        wait_for(lambda: t.open_ids(cluster, "twin") == [], "the twin's end")
        assert t.end(cluster, twin, commit=True) in t.OVER
        assert t.end(cluster, transaction, commit=True) == NO_ERROR
        t.begin(cluster, id_, 1_000, two_phase=True)
        cluster.close()
    finally:
        kafka.stop()


@pytest.mark.services
def test_a_broker_without_two_phase_commit_gets_transactions_with_a_limit(
    cluster: Cluster, id_: str
) -> None:
    assert not t.begin(cluster, id_, TIMEOUT_MS, two_phase=True).timeless
