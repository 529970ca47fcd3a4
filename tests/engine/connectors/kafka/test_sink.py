"""A Kafka sink in a pipeline: what is refused before anything runs, and whole jobs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine.connectors.kafka import transactions as t
from headrace.engine.connectors.kafka.cluster import Cluster, parse_servers
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.contract.connectors import Delivery
from headrace.engine.contract.errors import AddressUnreachable, UserError
from headrace.engine.contract.operators import Transaction
from headrace.testing import check_sink
from tests.services.kafka import Kafka
from tests.services.process import free_port

LAYOUT = Layout(topic="t")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"servers": ""}, "give addresses of brokers"),
        ({"delivery": "at-most-once"}, "choose one of 'exactly-once'"),
        ({"compression": "lzo"}, "choose one of"),
        ({"transaction_timeout": "10ms"}, "give one second to 24 days"),
        ({"batch_size": 10}, "give 1KiB or more"),
        ({"options": {"sasl_mechanismus": "PLAIN"}}, "no option 'sasl_mechanismus'"),
    ],
)
def test_wrong_options_are_told(options: dict[str, object], sentence: str) -> None:
    stated = {"servers": "localhost:9092"} | options
    with pytest.raises(UserError, match=sentence):
        KafkaSink(LAYOUT, **stated)  # type: ignore[arg-type]


def test_a_broker_that_is_not_there_is_told_when_the_pipeline_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.engine.connectors.kafka.sink._CHECK_PATIENCE_S", 0.2)
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(AddressUnreachable, match=servers):
        hr.read.sequence(1, name="numbers").write.kafka("t", servers=servers, name="out")


@pytest.mark.services
def test_an_unknown_topic_is_told_when_the_pipeline_is_built(kafka: Kafka) -> None:
    with pytest.raises(UserError, match=r"topic 'nowhere': it does not exist at 127\.0\.0\.1"):
        hr.read.sequence(1, name="numbers").write.kafka(
            "nowhere", servers=kafka.address, name="out"
        )


@pytest.fixture
def cluster(kafka: Kafka) -> Iterator[Cluster]:
    made = Cluster(parse_servers(kafka.address), Security())
    yield made
    made.close()


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_it_conforms(kafka: Kafka, cluster: Cluster, delivery: Delivery) -> None:
    topic = kafka.create_topic(f"kit-{time.time_ns()}")

    def make() -> KafkaSink:
        return KafkaSink(Layout(topic=topic, key="id"), kafka.address, delivery=delivery)

    def rows() -> list[dict[str, Any]]:
        return [json.loads(value) for _, _, value in kafka.committed(topic).elements()]

    def lose(transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            t.abort(cluster, str(transaction.payload["id"]))

    exact = delivery == "exactly-once"
    cases = check_sink(
        make,
        rows,
        lose=lose if exact else None,
        left_open=lambda: t.open_ids(cluster, "kit-"),
        settle_s=20.0,
    )
    assert ("a transaction is lost by the other side" in cases) is exact


def job(
    kafka: Kafka, topic: str, folder: Path, rows: int, rate: float | None, parallelism: int
) -> hr.Job:
    numbers = hr.read.sequence(rows, rate=rate, keys=10, name="numbers")
    sink = numbers.write.kafka(topic, servers=kafka.address, key="key", name="out")
    checkpoints = hr.Checkpoints(str(folder), interval="300ms")
    return hr.Job(topic, sink, parallelism=parallelism, checkpoints=checkpoints)


@pytest.mark.services
def test_a_job_writes_every_record_once_and_equal_keys_to_one_partition(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.create_topic(f"sink-{time.time_ns()}", 3)
    job(kafka, topic, tmp_path, 5_000, None, 1).run("threads")
    values = [json.loads(each) for each in kafka.consume(topic)]
    assert sorted(each["sequence"] for each in values) == list(range(5_000))
    for key in range(10):
        own = [each["sequence"] for each in values if each["key"] == key]
        assert own == sorted(own), f"records of key {key} are out of order"


@pytest.mark.services
@pytest.mark.slow
def test_a_broker_that_is_away_for_30_seconds_costs_no_restart(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.create_topic(f"away-{time.time_ns()}")
    handle = job(kafka, topic, tmp_path, 20_000, 400.0, 2).start("threads")
    while handle.status().completed < 2:
        time.sleep(0.05)
    kafka.kill()
    threading.Event().wait(30.0)
    kafka.restart()
    result = handle.wait(240.0)
    assert result.restarts == 0
    values = [json.loads(each)["sequence"] for each in kafka.consume(topic)]
    assert sorted(values) == list(range(20_000))
