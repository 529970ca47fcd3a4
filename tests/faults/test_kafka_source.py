"""Reading Kafka through kills of workers and of the broker, a rescale and new partitions, with
another client as judge.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

import headrace as hr
from headrace.engine.connectors.kafka.source import RecordsMissing
from headrace.engine.coordinator.rules import Phase

from ..services.kafka import Kafka
from .conftest import WAIT_S, wait_for

pytestmark = [pytest.mark.services, pytest.mark.slow]

Record = tuple[int, int, bytes]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def create(kafka: Kafka, partitions: int) -> str:
    return kafka.create_topic(f"source-{time.time_ns()}", partitions)


def visible(folder: Path) -> Counter[Record]:
    """What the job has made visible."""
    found: Counter[Record] = Counter()
    for path in sorted(folder.glob("[!_.]*.parquet")):
        table = pq.read_table(path)
        columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]
        found.update(zip(*columns, strict=True))
    return found


class Writer:
    """Writes numbered records in transactions, of which every fourth is aborted, until stopped."""

    def __init__(self, kafka: Kafka, topic: str, partitions: int) -> None:
        self.partitions = partitions
        #: Records of transactions that the broker has said to be committed.
        self.committed = 0
        self._kafka = kafka
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        life = number = 0
        while not self._ending.is_set():
            life += 1
            # A broker that is killed may leave a transaction in doubt: the next life ends it.
            with contextlib.suppress(KafkaException):
                number = self._live(CODECS[life % len(CODECS)], number)

    def _live(self, codec: str, number: int) -> int:
        config = {
            "bootstrap.servers": self._kafka.address,
            "transactional.id": self._topic,
            "compression.type": codec,
            "linger.ms": 5,
        }
        producer = Producer(config)
        producer.init_transactions(30)
        for turn in range(40):
            if self._ending.is_set():
                break
            producer.begin_transaction()
            for _ in range(50):
                number += 1
                value = b"%d %s" % (number, codec.encode())
                producer.produce(self._topic, value, partition=number % self.partitions)
            if turn % 4:
                producer.commit_transaction(30)
                self.committed += 50
            else:
                producer.abort_transaction(30)
            time.sleep(0.01)
        return number


@contextlib.contextmanager
def running(job: hr.Job) -> Iterator[hr.JobHandle]:
    handle = job.start("processes")
    try:
        wait_for(lambda: handle.status().phase is Phase.RUNNING, "the job's start")
        yield handle
    finally:
        handle.cancel()
        with contextlib.suppress(hr.JobFailed):
            handle.wait(WAIT_S)


def reading(kafka: Kafka, topic: str, folder: Path, **options: object) -> hr.Job:
    records = hr.read.kafka(
        topic,
        servers=kafka.address,
        name="in",
        columns=["partition", "offset", "value"],
        discover="1s",
        **options,  # type: ignore[arg-type]
    )
    sink = records.write.parquet(str(folder / "out"), name="out")
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval="0.5s")
    restart = hr.Restart(attempts=100)
    return hr.Job("kafka", sink, parallelism=2, checkpoints=checkpoints, restart=restart)


def test_committed_records_arrive_once_through_kills(
    kafka: Kafka, tmp_path: Path, long: bool
) -> None:
    rng = random.Random(1)
    topic = create(kafka, 4)
    writer = Writer(kafka, topic, 4)

    def kill_workers(count: int) -> None:
        for _ in range(count):
            time.sleep(rng.uniform(0.5, 2.0))
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(sorted(handle.status().workers.values())), signal.SIGKILL)

    with running(reading(kafka, topic, tmp_path, group="told")) as handle:
        kill_workers(10 if long else 3)
        restarts = len(handle.status().notices)
        kafka.kill()
        time.sleep(2)
        kafka.restart()
        wait_for(lambda: handle.status().phase is Phase.RUNNING, "the job with the new broker")
        assert restarts, "the kills came before the broker's"
        admin = AdminClient({"bootstrap.servers": kafka.address})
        for done in admin.create_partitions([NewPartitions(topic, 6)]).values():
            done.result()
        writer.partitions = 6
        handle.rescale(3)
        kill_workers(10 if long else 2)
        writer.stop()
        expected = kafka.committed(topic)
        out = tmp_path / "out"
        wait_for(lambda: sum(visible(out).values()) >= len(expected), "the last records")
        handle.stop()
        handle.wait(WAIT_S)
    assert {partition for partition, _, _ in expected} == set(range(6))
    assert visible(out) == expected
    told = Consumer({"bootstrap.servers": kafka.address, "group.id": "told"})
    ends = told.committed([TopicPartition(topic, each) for each in range(4)], 30)
    told.close()
    assert all(each.offset > 0 for each in ends)


def test_a_broker_that_is_away_does_not_restart_the_job(kafka: Kafka, tmp_path: Path) -> None:
    topic = create(kafka, 2)
    writer = Writer(kafka, topic, 2)
    with running(reading(kafka, topic, tmp_path)) as handle:
        wait_for(lambda: visible(tmp_path / "out"), "records")
        kafka.kill()
        time.sleep(5)
        kafka.restart()
        writer.stop()
        expected = kafka.committed(topic)
        wait_for(
            lambda: sum(visible(tmp_path / "out").values()) >= len(expected), "the last records"
        )
        handle.stop()
        result = handle.wait(WAIT_S)
    assert result.restarts == 0
    assert visible(tmp_path / "out") == expected


def test_checkpoints_and_the_end_of_the_job_do_not_wait_for_a_broker_that_hangs(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = create(kafka, 2)
    writer = Writer(kafka, topic, 2)
    with running(reading(kafka, topic, tmp_path)) as handle:
        wait_for(lambda: visible(tmp_path / "out"), "records")
        kafka.freeze()
        completed = handle.status().completed
        # The looks for new partitions hang, too: there is one each second.
        wait_for(lambda: handle.status().completed >= completed + 8, "checkpoints")
        began_s = time.monotonic()
        handle.stop()
        result = handle.wait(WAIT_S)
        took_s = time.monotonic() - began_s
    kafka.thaw()
    writer.stop()
    assert result.restarts == 0
    # A broker is given up after thirty seconds.
    assert took_s < 25
    seen, expected = visible(tmp_path / "out"), kafka.committed(topic)
    assert seen <= expected


def test_deleted_records_are_told(kafka: Kafka, tmp_path: Path) -> None:
    topic = create(kafka, 1)
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    producer.flush()
    source = hr.read.kafka(
        topic, servers=kafka.address, name="in", start={0: 10}, columns=["value"]
    )
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 60)]).values():
        deleted.result()
    job = hr.Job("deleted", source.write.blackhole(name="out"), restart=hr.Restart(attempts=0))
    with pytest.raises(hr.JobFailed, match=f"records 10 to 59 of {topic}-0 have been deleted"):
        job.run("threads", parallelism=1)
    assert issubclass(RecordsMissing, hr.JobFailed)


def test_a_bounded_read_ends_at_what_was_there(kafka: Kafka) -> None:
    topic = create(kafka, 3)
    writer = Writer(kafka, topic, 3)
    wait_for(lambda: writer.committed >= 300, "transactions")
    writer.stop()
    # A commit is acknowledged some moments before readers see it.
    wait_for(lambda: len(kafka.committed(topic)) == writer.committed, "the last transaction")
    read = hr.read.kafka(topic, servers=kafka.address, name="in", stop="latest", value="text")
    result = hr.Job("bounded", read.write.collect(name="out")).run("threads", parallelism=2)
    found = result.collected["out"]
    columns = [found.column(name).to_pylist() for name in ("partition", "offset", "value")]
    records = Counter((p, n, value.encode()) for p, n, value in zip(*columns, strict=True))
    assert records == kafka.committed(topic)
    assert records
