"""The writer of a subtask on a real broker: what it pre-commits, and its errors in words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka import transactions as t
from headrace.engine.connectors.kafka.cluster import Cluster, parse_servers
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.security import Security
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.connectors.kafka.writer import KafkaWriter
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.contract.operators import OperatorContext
from tests.services.kafka import Kafka
from tests.services.process import wait_for

from .fake_transactions import FakeSink


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create_topic(f"writer-{time.time_ns()}")


Open = Callable[..., KafkaWriter]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens writers, and closes them after the test."""
    writers: list[KafkaWriter] = []

    def open_(sink: KafkaSink, *, job: str, epoch: int = 1) -> KafkaWriter:
        writers.append(sink.writer())
        writers[-1].open(OperatorContext(job, "out", 0, 2, 128, epoch, owner="run"))
        return writers[-1]

    yield open_
    for writer in writers:
        writer.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers send each batch at once."""
    monkeypatch.setattr("headrace.engine.connectors.kafka.writer._GATHERED_BYTES", 1)


def texts(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"text": list(values)})


@pytest.mark.services
def test_records_show_after_the_commit_and_each_transaction_has_a_name_of_its_own(
    opened: Open, kafka: Kafka, topic: str
) -> None:
    sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address)
    writer, committer = opened(sink, job=topic), sink.committer(topic, "out")
    assert committer is not None
    writer.write(texts("a"))
    writer.write(texts("b"))
    first = writer.precommit(1)
    writer.write(texts("c"))
    second = writer.precommit(2)
    assert len({each.id for each in (*first, *second)}) == 2
    assert kafka.peek(topic) == []
    committer.commit(2, [*first, *second])
    cluster = Cluster(parse_servers(kafka.address), Security())
    id_ = str(first[0].payload["id"])
    wait_for(lambda: t.state(cluster, id_) == t.COMMITTED, "the commit in every partition")
    cluster.close()
    writer.write(texts("d"))
    third = writer.precommit(3)
    # The first slot is free again, under another number.
    assert third[0].payload["id"] == first[0].payload["id"]
    assert third[0].payload["number"] == 2
    committer.commit(3, third)
    assert sorted(kafka.consume(topic)) == ["a", "b", "c", "d"]


@pytest.mark.services
def test_a_writer_without_records_has_no_transaction(
    opened: Open, kafka: Kafka, topic: str
) -> None:
    writer = opened(KafkaSink(Layout(topic=topic, value="text"), kafka.address), job=topic)
    assert writer.precommit(1) == ()


@pytest.mark.services
@pytest.mark.parametrize("timestamp", [None, "time"])
def test_a_writer_goes_on_through_the_death_of_its_broker(
    opened: Open, kafka: Kafka, topic: str, timestamp: str | None
) -> None:
    layout = Layout(topic=topic, value="text", timestamp=timestamp)
    sink = KafkaSink(layout, kafka.address, batch_size="1KiB")
    writer, committer = opened(sink, job=topic), sink.committer(topic, "out")
    assert committer is not None
    many = [f"{n:0200}" for n in range(20_000)]

    def write(values: list[str]) -> None:
        # A broker that restarts forgets producers of old records, unless a transaction is open.
        old = pa.array([0] * len(values), pa.timestamp("ms"))
        writer.write(pa.record_batch({"text": values, "time": old}))

    for first in range(0, 10_000, 1000):
        write(many[first : first + 1000])
    kafka.kill()
    kafka.restart()
    for first in range(10_000, 20_000, 1000):
        write(many[first : first + 1000])
    committer.commit(1, writer.precommit(1))
    assert sorted(kafka.consume(topic)) == many


@pytest.mark.services
@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read_back(
    opened: Open, kafka: Kafka, topic: str, compression: str
) -> None:
    sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address, compression=compression)  # type: ignore[arg-type]
    writer, committer = opened(sink, job=topic), sink.committer(topic, "out")
    assert committer is not None
    writer.write(texts(*map(str, range(1000))))
    committer.commit(1, writer.precommit(1))
    assert sorted(map(int, kafka.consume(topic))) == list(range(1000))


@pytest.mark.services
def test_without_transactions_records_show_at_once(opened: Open, kafka: Kafka, topic: str) -> None:
    layout = Layout(topic=topic, value="text")
    sink = KafkaSink(layout, kafka.address, delivery="at-least-once")
    assert sink.delivery == "at-least-once"
    assert sink.committer(topic, "out") is None
    writer = opened(sink, job=topic)
    writer.write(texts("a"))
    assert writer.precommit(1) == ()
    assert kafka.consume(topic) == ["a"]


@pytest.mark.services
def test_topics_of_a_column_share_a_transaction(opened: Open, kafka: Kafka, topic: str) -> None:
    other = kafka.create_topic(f"other-{time.time_ns()}", 3)
    sink = KafkaSink(Layout(topic_column="to", value="text"), kafka.address)
    writer, committer = opened(sink, job=topic), sink.committer(topic, "out")
    assert committer is not None
    writer.write(pa.record_batch({"to": [topic, other, topic], "text": ["a", "b", "c"]}))
    (transaction,) = writer.precommit(1)
    committer.commit(1, [transaction])
    assert sorted(kafka.consume(topic)) == ["a", "c"]
    assert kafka.consume(other) == ["b"]


@pytest.mark.services
def test_a_record_that_is_too_large_is_told_with_the_limit_to_raise(
    opened: Open, kafka: Kafka
) -> None:
    topic = kafka.create_topic(f"small-{time.time_ns()}", 1, max_message_bytes="2000")
    writer = opened(KafkaSink(Layout(topic=topic, value="text"), kafka.address), job=topic)
    writer.write(texts(os.urandom(3000).hex()))
    with pytest.raises(HeadraceError, match=r"sink 'out': .*too large.*max\.message\.bytes"):
        writer.precommit(1)


@pytest.mark.services
def test_an_unknown_topic_of_a_column_is_named(opened: Open, kafka: Kafka, topic: str) -> None:
    writer = opened(KafkaSink(Layout(topic_column="to", value="text"), kafka.address), job=topic)
    writer.write(pa.record_batch({"to": ["nowhere"], "text": ["a"]}))
    with pytest.raises(HeadraceError, match="topic 'nowhere': it does not exist"):
        writer.precommit(1)


@pytest.mark.services
def test_a_time_limit_above_that_of_the_broker_is_told(
    opened: Open, kafka: Kafka, topic: str
) -> None:
    sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address, transaction_timeout="1h")
    with pytest.raises(HeadraceError, match=r"transaction_timeout=3600 s: lower it, or raise"):
        opened(sink, job=topic).write(texts("a"))


@pytest.mark.services
@pytest.mark.usefixtures("eager")
def test_an_open_transaction_that_timed_out_is_told_as_one(
    opened: Open, kafka: Kafka, topic: str
) -> None:
    sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address, transaction_timeout="1s")
    writer = opened(sink, job=topic)
    writer.write(texts("a"))
    cluster = Cluster(parse_servers(kafka.address), Security())
    wait_for(lambda: not t.open_ids(cluster, t.Family(topic, "out").prefix), "the time out")
    cluster.close()
    with pytest.raises(HeadraceError, match=r"longer than transaction_timeout=1 s"):
        writer.precommit(1)


@pytest.mark.services
@pytest.mark.usefixtures("eager")
def test_a_newer_writer_of_the_same_id_shuts_an_older_one_out(
    opened: Open, kafka: Kafka, topic: str
) -> None:
    sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address)
    committer = sink.committer(topic, "out")
    assert committer is not None
    zombie = opened(sink, job=topic)
    zombie.write(texts("zombie"))
    committer.own("run", anew=False)
    committer.recover(0, [], epoch=1)
    with pytest.raises(HeadraceError, match="Kafka has ended the open transaction"):
        zombie.precommit(1)
    newer = opened(sink, job=topic, epoch=2)
    newer.write(texts("newer"))
    committer.recover(0, [], epoch=1)  # by a driver that was frozen: leaves epoch 2 alone
    committer.commit(1, newer.precommit(1))
    assert kafka.consume(topic) == ["newer"]


@pytest.mark.services
def test_only_transactions_of_the_run_are_aborted(opened: Open, kafka: Kafka, topic: str) -> None:
    sink = KafkaSink(Layout(topic=topic, value="text"), kafka.address)
    committer = sink.committer(topic, "out")
    assert committer is not None
    writer = opened(sink, job=topic)
    writer.write(texts("a"))
    transactions = writer.precommit(1)
    cluster = sink.committer(topic, "out")
    assert cluster is not None
    cluster.own("another run", anew=True)
    cluster.recover(0, [])
    committer.commit(1, transactions)
    assert kafka.consume(topic) == ["a"]
    assert t.Family(topic, "out").prefix in str(transactions[0].payload["id"])


@pytest.mark.parametrize("key", [None, "text"])
def test_a_pre_commit_sends_its_records_and_asks_whether_the_transaction_is_open(
    key: str | None,
) -> None:
    fake = FakeSink(key=key)
    writer = fake.writer(1)
    asked = []
    for checkpoint in range(1, 5):
        writer.write(texts(*map(str, range(20))))
        before = fake.cluster.asked.copy()
        transactions = writer.precommit(checkpoint)
        asked.append(fake.cluster.asked - before)
        fake.committer.commit(checkpoint, transactions)
    # The first transaction learns which partitions records with keys go to.
    assert asked[1:] == [{"Produce": 1, "AddPartitionsToTxn": 1}] * 3
    assert len(fake.visible) == 80
    writer.close()


def test_a_transaction_without_records_is_not_handed_over() -> None:
    fake = FakeSink(topic=None, topic_column="to")
    writer = fake.writer(1)
    none = pa.record_batch({"to": pa.array([], pa.string()), "text": pa.array([], pa.string())})
    writer.write(none)
    assert writer.precommit(1) == ()
    writer.write(pa.record_batch({"to": ["t"], "text": ["a"]}))
    fake.committer.commit(2, writer.precommit(2))
    assert fake.visible == [b"a"]
    assert fake.cluster.asked["InitProducerId"] == 1
    writer.close()


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        ("InitProducerId", 53, "transactional ids whose names begin with the job's"),
        ("InitProducerId", 50, r"allows less than transaction_timeout=900 s: lower it"),
        ("AddPartitionsToTxn", 29, r"partition t-\d .* allow WRITE and DESCRIBE"),
        ("AddOffsetsToTxn", 30, "allow READ of groups whose names begin with the job's"),
        ("TxnOffsetCommit", 29, "READ as well, for the transaction's token"),
        ("Produce", 29, r"partition t-\d: this user may not write to it"),
        ("Produce", 31, "allow IDEMPOTENT_WRITE on the cluster"),
    ],
)
def test_what_a_broker_refuses_is_told_with_what_to_do(kind: str, code: int, sentence: str) -> None:
    fake = FakeSink()
    fake.cluster.refusals[kind] = code
    writer = fake.writer(1)
    with pytest.raises(HeadraceError, match=f"^sink 'out': .*{sentence}"):
        fake.precommit(writer, "a")
    writer.close()
