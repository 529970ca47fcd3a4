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

import pytest

from headrace.engine.connectors.kafka import transactions
from headrace.engine.connectors.kafka.cluster import Cluster, parse_servers
from headrace.engine.connectors.kafka.security import Security
from tests.services.kafka import Kafka

from .conftest import Program, wait_for, wait_until_dead

pytestmark = [pytest.mark.services, pytest.mark.slow]

DRIVER = Path(__file__).with_name("kafka_driver.py")
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


def open_transactions(kafka: Kafka) -> list[str]:
    cluster = Cluster(parse_servers(kafka.address), Security())
    try:
        # The broker may have transactions of other tests.
        return transactions.open_ids(cluster, "to-kafka.")
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
    doubled = sum(1 for count in counts.values() if count > 1)
    assert (len(counts), doubled) == (campaign.rows, 0)
