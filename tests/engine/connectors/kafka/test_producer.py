"""Record batches through trouble: each is written once, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka import transactions as t
from headrace.engine.connectors.kafka.cluster import BrokerError, Cluster, Partition, parse_servers
from headrace.engine.connectors.kafka.producer import Outgoing, Producer
from headrace.engine.connectors.kafka.record_batch import encode
from headrace.engine.connectors.kafka.security import Security
from tests.services.kafka import Kafka

pytestmark = pytest.mark.services


@pytest.fixture
def clusters(kafka: Kafka) -> Iterator[tuple[Cluster, Cluster]]:
    made = tuple(Cluster(parse_servers(kafka.address), Security()) for _ in range(2))
    yield made[0], made[1]
    for each in made:
        each.close()


class Sender:
    """Sends numbers to one partition, a batch each."""

    def __init__(self, kafka: Kafka, clusters: tuple[Cluster, Cluster], **settings: str) -> None:
        topic = kafka.create_topic(f"producer-{time.time_ns()}", 1, **settings)
        self.partition = Partition(topic, 0)
        self.producer = Producer(*clusters, patience_s=60.0)
        self.identity = t.plain_producer(clusters[0])
        self.producer.begin(None)

    def send(self, *numbers: int) -> None:
        for number in numbers:
            records = encode(
                pa.array([b"%d" % number], pa.binary()),
                # A broker that restarts forgets producers whose last record is days old.
                now_ms=int(time.time() * 1000),
                producer=self.identity,
                sequence=self.producer.sequence(self.partition, 1),
            )
            self.producer.send([Outgoing(self.partition, records)])


def test_a_broker_killed_amid_requests_has_each_batch_once_and_in_order(
    kafka: Kafka, clusters: tuple[Cluster, Cluster]
) -> None:
    sender = Sender(kafka, clusters)
    sender.send(*range(10))
    kafka.kill()
    kafka.restart()
    sender.send(*range(10, 20))
    sender.producer.flush()
    assert kafka.consume(sender.partition.topic) == [str(n) for n in range(20)]


def test_batches_whose_answers_are_lost_are_not_written_twice(
    kafka: Kafka, clusters: tuple[Cluster, Cluster]
) -> None:
    sender = Sender(kafka, clusters)
    for first in range(0, 20, 4):
        sender.send(*range(first, first + 4))
        clusters[1].close()  # the requests have left, and no answer was read
    sender.producer.flush()
    assert kafka.consume(sender.partition.topic) == [str(n) for n in range(20)]


def test_what_will_not_pass_later_is_raised(
    kafka: Kafka, clusters: tuple[Cluster, Cluster]
) -> None:
    sender = Sender(kafka, clusters, max_message_bytes="60")
    with pytest.raises(BrokerError) as refused:
        sender.send(1)
        sender.producer.flush()
    assert refused.value.code == 10
