"""Commits that are repeated, late or lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka import transactions as t
from headrace.engine.connectors.kafka.cluster import Cluster, parse_servers
from headrace.engine.connectors.kafka.committer import KafkaCommitter
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.connectors.kafka.writer import KafkaWriter
from headrace.engine.contract.errors import AddressUnreachable, CommitLost, HeadraceError
from headrace.engine.contract.operators import OperatorContext, Transaction
from tests.services.kafka import Kafka
from tests.services.process import free_port, wait_for

from .fake_transactions import FakeSink

TEXT = pa.record_batch({"text": ["a"]})


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers send each batch at once."""
    monkeypatch.setattr("headrace.engine.connectors.kafka.writer._GATHERED_BYTES", 1)


class Written:
    """A sink, its writer and committer."""

    def __init__(self, kafka: Kafka, timeout: str = "1m") -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic(f"committer-{time.time_ns()}")
        layout = Layout(topic=self.topic, value="text")
        self.sink = KafkaSink(layout, kafka.address, transaction_timeout=timeout)
        self.writer: KafkaWriter = self.sink.writer()
        self.writer.open(OperatorContext(self.topic, "out", 0, 1, 128, 1, owner="run"))

    def committer(self) -> KafkaCommitter:
        made = self.sink.committer(self.topic, "out")
        assert made is not None
        made.own("run", anew=False)
        return made

    def precommit(self, checkpoint: int) -> Transaction:
        self.writer.write(TEXT)
        (transaction,) = self.writer.precommit(checkpoint)
        return transaction

    def open(self) -> list[str]:
        cluster = Cluster(parse_servers(self.kafka.address), Security())
        try:
            return t.open_ids(cluster, t.Family(self.topic, "out").prefix)
        finally:
            cluster.close()


@pytest.fixture
def written(kafka: Kafka) -> Iterator[Written]:
    made = Written(kafka)
    yield made
    made.writer.close()


@pytest.fixture
def short_lived(kafka: Kafka) -> Iterator[Written]:
    made = Written(kafka, timeout="1s")
    yield made
    made.writer.close()


@pytest.mark.services
def test_a_commit_repeated_after_newer_ones_does_nothing(written: Written) -> None:
    committer = written.committer()
    first = written.precommit(1)
    committer.commit(1, [first])
    for checkpoint in range(2, 5):
        # Newer transactions use the first one's id again.
        committer.commit(checkpoint, [written.precommit(checkpoint)])
    committer.commit(1, [first])
    written.committer().recover(1, [first])
    assert written.kafka.consume(written.topic) == ["a"] * 4


@pytest.mark.services
def test_a_transaction_that_timed_out_is_lost_by_name(short_lived: Written) -> None:
    committer = short_lived.committer()
    transaction = short_lived.precommit(1)
    wait_for(lambda: not short_lived.open(), "the time out")
    with pytest.raises(CommitLost, match=r"sink 'out': transaction .* can no longer be committed"):
        committer.commit(1, [transaction])


@pytest.mark.services
def test_the_id_of_a_lost_transaction_is_not_used_again(short_lived: Written) -> None:
    transaction = short_lived.precommit(1)
    wait_for(lambda: not short_lived.open(), "the time out")
    with pytest.raises(HeadraceError, match=r"waited for its commit and is \w+:"):
        short_lived.precommit(2)
    with pytest.raises(CommitLost):
        short_lived.committer().commit(1, [transaction])


@pytest.mark.services
def test_a_recovery_commits_what_it_is_told_and_aborts_the_rest(written: Written) -> None:
    kept, dropped = written.precommit(1), written.precommit(2)
    written.writer.write(TEXT)
    assert len(written.open()) == 3
    written.committer().recover(1, [kept])
    assert written.open() == []
    assert written.kafka.consume(written.topic) == ["a"]
    with pytest.raises(CommitLost):
        written.committer().commit(2, [dropped])


@pytest.mark.services
def test_what_other_runs_left_open_is_told_and_removed_when_asked(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    written.precommit(1)
    committer = written.sink.committer(written.topic, "out")
    assert committer is not None
    with caplog.at_level(logging.WARNING):
        committer.own("another", anew=True)
    assert "1 transactions of other runs of this job are open" in caplog.text
    assert "transaction_timeout=60 s" in caplog.text
    committer.remove_output()
    assert written.open() == []


@pytest.mark.services
def test_a_transaction_that_waits_for_half_of_its_time_is_told_once(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    transaction = written.precommit(1)
    late = time.time() + 31.0
    committer = KafkaCommitter(
        written.sink.settings, job=written.topic, operator="out", clock=lambda: late
    )
    written.kafka.kill()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(AddressUnreachable):
                committer.commit(1, [transaction])
    assert caplog.text.count("s ago and is not committed") == 1
    written.kafka.restart()
    committer.commit(1, [transaction])
    assert written.kafka.consume(written.topic) == ["a"]


def test_a_broker_that_is_not_there_is_told_with_its_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    sink = KafkaSink(Layout(topic="t", value="text"), address)
    committer = sink.committer("job", "out")
    assert committer is not None
    with pytest.raises(AddressUnreachable, match=rf"{address} could not be reached for 5 s"):
        committer.own("run", anew=False)


def test_what_a_writer_begins_that_was_frozen_through_a_recovery_is_aborted() -> None:
    fake = FakeSink()
    fake.committer.recover(0, [], epoch=1)
    zombie = fake.writer(1)
    fake.committer.commit(1, [fake.precommit(zombie, "before")])
    fake.committer.recover(1, [], epoch=2)
    successor = fake.writer(2)
    fake.precommit(zombie, "of nobody")
    waits = fake.precommit(successor, "after")
    assert len(fake.open()) == 2
    fake.now_s += 1.0
    fake.committer.commit(2, [fake.precommit(successor, "and after")])
    # The transaction of the zombie is gone, and not the successor's, which waits for its commit.
    assert fake.open() == [waits.payload["id"]]
    fake.committer.commit(3, [waits])
    assert fake.open() == []
    assert fake.visible == [b"before", b"and after", b"after"]


def test_commits_look_for_such_transactions_ever_more_rarely() -> None:
    fake = FakeSink()
    fake.committer.recover(0, [], epoch=2)
    writer = fake.writer(2)
    listed = []
    for checkpoint in range(1, 301):
        fake.now_s += 1.0
        before = fake.cluster.asked["ListTransactions"]
        fake.committer.commit(checkpoint, [fake.precommit(writer, "x")])
        if fake.cluster.asked["ListTransactions"] > before:
            listed.append(checkpoint)
    assert listed == [1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_a_commit_without_a_recovery_looks_for_nothing() -> None:
    fake = FakeSink()
    writer = fake.writer(1)
    before = fake.cluster.asked["ListTransactions"]
    fake.now_s += 1000.0
    fake.committer.commit(1, [fake.precommit(writer, "x")])
    assert fake.cluster.asked["ListTransactions"] == before
