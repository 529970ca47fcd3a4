"""Kafka as a sink, through kills of workers, drivers and the broker: no record is lost or doubled
for readers of committed records, and no transaction stays open.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka import transactions
from headrace.engine.connectors.kafka.cluster import Cluster, parse_servers
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.contract.operators import OperatorContext, Transaction
from tests.services.kafka import Kafka

from .conftest import Program, wait_for, wait_until_dead

pytestmark = [pytest.mark.services, pytest.mark.slow]

DRIVER = Path(__file__).with_name("kafka_driver.py")
WRITER = Path(__file__).with_name("kafka_writer.py")
#: More than the job makes before it is hurried.
ROWS = 300_000
ROWS_LONG = 1_500_000
RATE_PER_S = 1_000.0
KILLS = ("worker", "before commit", "broker", "after commit", "reply lost", "driver")
#: Of one driver after the other.
PARALLELISMS = (2, 2, 3, 2, 1)
#: Kills that a driver does itself, and does not outlive.
SUICIDES = ("before commit", "after commit")


class Campaign:
    """A job whose drivers follow each other, each over the checkpoints of the one before."""

    def __init__(self, folder: Path, kafka: Kafka, rows: int, rng: random.Random) -> None:
        self.kafka = kafka
        self.rows = rows
        self.topic = kafka.create_topic(f"out-{time.time_ns()}")
        self._folder = folder
        self._rng = rng
        self._parallelisms = itertools.cycle(PARALLELISMS)
        self.driver: Program | None = None
        self.workers: list[int] = []

    def start(self, step: str = "") -> Program:
        """Start the next driver."""
        self.end()
        facts = [str(self._folder), self.kafka.address, self.topic, str(self.rows)]
        parallelism = next(self._parallelisms)
        self.driver = Program(str(DRIVER), *facts, str(RATE_PER_S), str(parallelism), step)
        self.workers = self.driver.until("running")
        return self.driver

    def end(self) -> None:
        """End the driver, if there is one."""
        if self.driver is not None:
            self.driver.close()
            wait_until_dead(self.workers)

    def kill(self, what: str) -> None:
        """Let the thing die, and wait until the job completes checkpoints again."""
        if what in SUICIDES or what == "reply lost" or self.driver is None:
            driver = self.start(what)
        else:
            driver = self.driver
            driver.until("checkpoint")
        time.sleep(self._rng.uniform(0.0, 0.3))
        match what:
            case "worker":
                os.kill(self._rng.choice(self.workers), signal.SIGKILL)
                self.workers = driver.until("running")
            case "broker":
                self.kafka.kill()
                time.sleep(self._rng.uniform(0.0, 2.0))
                self.kafka.restart()
            case "driver":
                driver.kill()
                self.start()
            case "reply lost":
                driver.until("lost")
            case _:
                driver.process.wait(60.0)
                self.start()
        assert self.driver is not None
        self.driver.until("checkpoint")

    def finish(self) -> None:
        """Let the job make all its records, and end."""
        (self._folder / "hurry").touch()
        assert self.driver is not None
        self.driver.until("finished")
        assert self.driver.ended()[0] == 0


@pytest.fixture
def campaign(tmp_path: Path, kafka: Kafka, long: bool) -> Iterator[Campaign]:
    made = Campaign(tmp_path, kafka, ROWS_LONG if long else ROWS, random.Random(1))
    yield made
    with suppress(Exception):
        made.end()


def open_transactions(kafka: Kafka, job: str = "to-kafka") -> list[str]:
    cluster = Cluster(parse_servers(kafka.address), Security())
    try:
        # The broker may have transactions of other tests.
        return transactions.open_ids(cluster, f"{job}.")
    finally:
        cluster.close()


def test_every_record_arrives_once_through_kills(campaign: Campaign, long: bool) -> None:
    campaign.start()
    kills = itertools.islice(itertools.cycle(KILLS), 20 if long else 4)
    for what in kills:
        campaign.kill(what)
    campaign.finish()
    wait_for(lambda: not open_transactions(campaign.kafka), "the end of all transactions")
    counts = Counter(
        json.loads(each)["sequence"] for each in campaign.kafka.consume(campaign.topic)
    )
    lost = sorted(set(range(campaign.rows)) - set(counts))
    doubled = sorted(number for number, count in counts.items() if count > 1)
    assert not lost, f"{len(lost)} records are lost: {shown(lost)}"
    assert not doubled, f"{len(doubled)} records came more than once: {shown(doubled)}"
    assert len(counts) == campaign.rows, "records that the job has not made"


def shown(numbers: list[int]) -> str:
    """Some of the numbers: neighbours tell of a transaction."""
    return f"{numbers[:20]} to {numbers[-1]}" if numbers else ""


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create_topic(f"zombie-{time.time_ns()}")


@pytest.fixture
def writer(kafka: Kafka, topic: str) -> Iterator[Program]:
    """A writer of the first attempt of the job that has the name of its topic."""
    program = Program(str(WRITER), kafka.address, topic, "1")
    program.until("open")
    yield program
    program.close()


@pytest.mark.parametrize("frozen", ["between transactions", "amid a transaction"])
def test_a_writer_frozen_through_a_recovery_leaves_nothing_open(
    kafka: Kafka, topic: str, writer: Program, frozen: str
) -> None:
    job = Attempt(kafka, topic)
    job.committer.recover(0, [], epoch=1)
    writer.tell("write first")
    writer.tell("precommit 1")
    job.committer.commit(1, [Transaction(**each) for each in writer.until("precommitted")])
    if frozen == "amid a transaction":
        writer.tell("write of nobody")
        writer.until("written")
    os.kill(writer.process.pid, signal.SIGSTOP)
    job.committer.recover(1, [], epoch=2)
    job.checkpoint(2, "second")
    writer.tell("write of nobody, later")
    os.kill(writer.process.pid, signal.SIGCONT)
    if frozen == "amid a transaction":
        assert "Kafka has ended the open transaction" in writer.until("failed")
    else:
        writer.until("written")
        assert open_transactions(kafka, topic), "the writer has begun a transaction"
        writer.tell("precommit 2")
        assert writer.until("precommitted"), "of a checkpoint that nobody completes"
    values = ["first", "second"]
    for checkpoint in itertools.count(3):
        values.append(str(checkpoint))
        job.checkpoint(checkpoint, str(checkpoint))
        if not open_transactions(kafka, topic):
            break
        assert checkpoint < 100, f"{open_transactions(kafka, topic)} is open"
        time.sleep(0.1)
    assert sorted(kafka.consume(topic)) == sorted(values)
    job.writer.close()


class Attempt:
    """The committer of a job, and the writer of its second attempt."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address)
        self.writer = sink.writer()
        self.writer.open(OperatorContext(topic, "out", 0, 1, 128, 2, owner="run"))
        committer = sink.committer(topic, "out")
        assert committer is not None
        self.committer = committer
        self.committer.own("run", anew=True)

    def checkpoint(self, checkpoint: int, text: str) -> None:
        """Write a record, and commit it."""
        self.writer.write(pa.record_batch({"text": [text]}))
        self.committer.commit(checkpoint, self.writer.precommit(checkpoint))
