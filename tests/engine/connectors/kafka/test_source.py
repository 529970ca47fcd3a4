"""The Kafka source over a cluster in memory: each record once, whatever happens between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace.engine.connectors.kafka import fetcher as fetcher_module
from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.errands import in_thread
from headrace.engine.connectors.kafka.group import GroupCommits
from headrace.engine.connectors.kafka.planning import plan
from headrace.engine.connectors.kafka.source import (
    KafkaReader,
    KafkaSource,
    RecordsMissing,
    kafka_source,
)
from headrace.engine.connectors.kafka.values import Rows
from headrace.engine.contract.errors import AddressUnreachable, HeadraceError, UserError
from headrace.engine.contract.operators import (
    HearsCheckpoints,
    OperatorContext,
    ReadsSplits,
    RestoredState,
    SourceStatus,
    StateKind,
)
from headrace.testing import check_source
from tests.services.kafka import Kafka

from .fake import FakeCluster, Log

Place = tuple[int, int]


def source(cluster: FakeCluster, **options: Any) -> KafkaSource:
    given: dict[str, Any] = {
        "topics": ("t",),
        "servers": cluster.servers,
        "bounded": True,
        "connect": cluster.connect,
        "patience_s": 0.2,
        "start_errand": lambda errand: errand(),
        "rows": Rows(("partition", "offset", "value")),
    }
    return KafkaSource(**{**given, **options})


def filled(partitions: int = 1, records: int = 40, batch: int = 7, brokers: int = 1) -> FakeCluster:
    """Value N of partition P is `P/N`, at offset N."""
    cluster = FakeCluster(brokers=brokers)
    for index, log in cluster.create("t", partitions).items():
        fill(log, index, records, batch)
    return cluster


def fill(log: Log, index: int, records: int, batch: int = 7) -> None:
    while records:
        count = min(batch, records)
        log.append([b"%d/%d" % (index, log.end + n) for n in range(count)], time_ms=log.end)
        records -= count


def context(index: int = 0, parallelism: int = 1) -> OperatorContext:
    return OperatorContext("job", "operator", index, parallelism, 128, 1)


def opened(kafka: KafkaSource, index: int = 0, parallelism: int = 1) -> KafkaReader:
    _ = kafka.schema
    reader = kafka.reader()
    reader.open(context(index, parallelism))
    return reader


def read(reader: KafkaReader, polls: int = 200, rows_max: int = 5) -> list[Place]:
    """Accepted polls, until the end or until nothing comes."""
    found: list[Place] = []
    for _ in range(polls):
        polled = reader.poll(rows_max)
        reader.commit()
        for batch in polled.batches:
            assert batch.num_rows <= rows_max
            rows = batch.to_pylist()
            for row in rows:
                assert polled.split == f"t-{row['partition']}"
                assert row["value"] in (b"%d/%d" % (row["partition"], row["offset"]), b"hidden")
            found += [(row["partition"], row["offset"]) for row in rows]
        if polled.status is not SourceStatus.MORE:
            break
    return found


def restored(*readers: KafkaReader) -> list[RestoredState]:
    tables = [state.table() for reader in readers for state in reader.snapshot()]
    return [RestoredState("offsets", StateKind.UNION, pa.concat_tables(tables))]


def every(partitions: int, records: int) -> list[Place]:
    return [(p, n) for p in range(partitions) for n in range(records)]


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize("stop", ["latest", None])
def test_it_conforms(kafka: Kafka, stop: str | None) -> None:
    topic = kafka.create_topic(f"kit-{time.time_ns()}", 3)
    producer = Producer({"bootstrap.servers": kafka.address})
    records = [(n % 3, b"%d" % n) for n in range(40)]
    for partition, value in records:
        producer.produce(topic, value, partition=partition)
        # Small batches.
        producer.flush()
    columns = ["partition", "value"]

    def make() -> KafkaSource:
        return described(topics=[topic], servers=kafka.address, stop=stop, columns=columns)

    rows = [{"partition": partition, "value": value} for partition, value in records]
    assert len(check_source(make, rows)) == 7


@pytest.mark.parametrize("seed", range(12))
def test_each_record_is_read_once_through_failures_and_rescalings(
    seed: int, drive: Callable[..., Any]
) -> None:
    rng = random.Random(seed)
    kafka = source(filled(partitions=5, records=60, brokers=3))
    run = drive(kafka, seed)
    for _ in range(4):
        run.some(rng.randint(1, 7), rng.randint(0, 20))
    run.rest(rng.randint(1, 7))
    places = zip(run.column("partition"), run.column("offset"), strict=True)
    assert sorted(places) == every(5, 60)


def test_a_reader_offers_what_the_runtime_asks_for() -> None:
    reader = opened(source(filled(), bounded=False))
    assert isinstance(reader, ReadsSplits)
    assert isinstance(reader, HearsCheckpoints)


def test_partitions_take_turns_and_hold_event_time_back_until_their_end() -> None:
    reader = opened(source(filled(partitions=3, records=10)))
    assert reader.open_splits() == {"t-0", "t-1", "t-2"}
    assert [place[0] for place in read(reader, polls=3)] == [0] * 4 + [1] * 4 + [2] * 4
    assert read(reader) != []
    assert reader.open_splits() == frozenset()


def test_many_small_batches_are_read_at_once() -> None:
    reader = opened(source(filled(records=40, batch=1)))
    assert len(read(reader, polls=1, rows_max=100)) == 40


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 40),
        (datetime.fromtimestamp(0.014, UTC), 14),
        (datetime.fromtimestamp(9, UTC), 40),
        ({Partition("t", 0): 33}, 33),
    ],
)
def test_reading_begins_where_it_is_told_to(start: Any, first: int) -> None:
    cluster = filled()
    kafka = source(cluster, start=start, bounded=False)
    _ = kafka.schema
    fill(cluster.topics["t"][0], 0, 5)
    assert read(opened(kafka)) == [(0, n) for n in range(first, 45)]


def test_reading_ends_at_what_was_there_and_goes_on_there_in_a_later_run() -> None:
    cluster = filled(records=3)
    log = cluster.topics["t"][0]
    first = source(cluster)
    _ = first.schema
    # One batch of the later records, and the stop within a batch.
    log.batches.clear()
    log.end = 0
    fill(log, 0, 10, batch=10)
    reader = opened(first)
    assert read(reader, rows_max=100) == [(0, n) for n in range(3)]
    assert reader.poll(5).status is SourceStatus.END
    again = opened(source(cluster))
    again.restore(restored(reader))
    assert read(again) == [(0, n) for n in range(3, 10)]


def test_a_restart_before_the_first_checkpoint_reads_the_same_records() -> None:
    cluster = filled()
    kafka = source(cluster, start="latest", bounded=False)
    reader = opened(kafka)
    fill(cluster.topics["t"][0], 0, 5)
    assert read(reader) == read(opened(kafka)) == [(0, n) for n in range(40, 45)]


def transactions(cluster: FakeCluster) -> None:
    """Offsets 0-2 committed, 3-4 aborted, 6 committed between, 8-9 open."""
    log = cluster.topics["t"][0]
    log.append([b"0/0", b"0/1", b"0/2"], producer=1)
    log.append([b"hidden", b"hidden"], producer=2)
    log.mark(1, first=0, commit=True)
    log.append([b"0/6"], producer=3)
    log.mark(2, first=3, commit=False)
    log.mark(3, first=6, commit=True)
    log.stable = log.end
    log.append([b"hidden"], producer=2)


def test_only_committed_records_are_seen() -> None:
    cluster = filled(records=0)
    transactions(cluster)
    assert read(opened(source(cluster))) == [(0, 0), (0, 1), (0, 2), (0, 6)]
    uncommitted = source(cluster, isolation="read_uncommitted")
    assert [n for _, n in read(opened(uncommitted))] == [0, 1, 2, 3, 4, 6, 9]


def test_a_transaction_is_hidden_from_the_middle_on() -> None:
    cluster = filled(records=0)
    transactions(cluster)
    kafka = source(cluster, start={Partition("t", 0): 4})
    assert read(opened(kafka)) == [(0, 6)]


def test_offsets_that_compaction_took_are_passed_over() -> None:
    cluster = filled(records=40, batch=10)
    log = cluster.topics["t"][0]
    log.compact(10)
    log.compact(20)
    assert read(opened(source(cluster))) == [(0, n) for n in [*range(10), *range(30, 40)]]


def test_new_partitions_are_found_and_read_from_their_beginning() -> None:
    cluster = filled(partitions=2, records=5)
    now = [0]
    kafka = source(cluster, bounded=False, start="latest", discover_ns=10, clock=lambda: now[0])
    readers = [opened(kafka, index, 2) for index in range(2)]
    assert [read(reader) for reader in readers] == [[], []]
    for index in range(2, 8):
        fill(cluster.topics["t"].setdefault(index, Log()), index, 5)
    assert [read(reader) for reader in readers] == [[], []]
    now[0] = 11
    found = [read(reader) for reader in readers]
    assert all(found), "each subtask owns some"
    assert sorted(found[0] + found[1]) == [(p, n) for p in range(2, 8) for n in range(5)]
    assert readers[0].open_splits() | readers[1].open_splits() == {f"t-{p}" for p in range(8)}
    third = opened(kafka, 0, 1)
    third.restore(restored(*readers))
    assert read(third) == []


def test_a_partition_that_appeared_between_two_runs_is_read_from_its_beginning() -> None:
    cluster = filled(records=5)
    before = opened(source(cluster))
    read(before)
    fill(cluster.topics["t"].setdefault(1, Log()), 1, 5)
    after = opened(source(cluster, start="latest"))
    after.restore(restored(before))
    assert read(after) == [(1, n) for n in range(5)]


def test_a_topic_that_is_read_no_more_is_remembered() -> None:
    cluster = filled(records=5)
    before = opened(source(cluster))
    read(before)
    cluster.create("u", 1)
    without = opened(source(cluster, topics=("u",)))
    without.restore(restored(before))
    assert read(without) == []
    fill(cluster.topics["t"][0], 0, 2)
    again = opened(source(cluster))
    again.restore(restored(without))
    assert read(again) == [(0, 5), (0, 6)]


def test_a_leader_that_moves_is_followed() -> None:
    cluster = filled(partitions=2, brokers=2)
    reader = opened(source(cluster))
    found = read(reader, polls=1)
    for log in cluster.topics["t"].values():
        log.leader = 1 - log.leader
    cluster.bytes_max = 1
    for _ in range(3):
        found += waited(reader)
    assert sorted(found) == every(2, 40)


def waited(reader: KafkaReader) -> list[Place]:
    """Read on after pauses as long as those of the fetcher."""
    time.sleep(fetcher_module._PAUSE_S)
    return read(reader)


@pytest.mark.parametrize("code", [3, 5, 6, 7, 74, 78])
def test_errors_that_pass_are_waited_for(code: int) -> None:
    cluster = filled()
    reader = opened(source(cluster))
    cluster.errors[Partition("t", 0)] = [0, code]
    found = read(reader) + waited(reader)
    assert found == every(1, 40)


def test_a_broker_that_restarts_is_waited_for() -> None:
    cluster = filled(records=100)
    cluster.bytes_max = 1
    reader = opened(source(cluster))
    found = read(reader, polls=3)
    cluster.down.add(0)
    found += read(reader)
    assert reader.poll(5).status is SourceStatus.IDLE
    cluster.down.clear()
    found += waited(reader)
    assert found == every(1, 100)


def test_a_broker_that_stays_away_is_named_with_how_long_it_was_tried() -> None:
    cluster = filled()
    cluster.bytes_max = 1
    reader = opened(source(cluster))
    read(reader, polls=1)
    cluster.down.add(0)
    with pytest.raises(AddressUnreachable, match=r"t-0 of Kafka at fake:9000 .* for 0\.2 s"):
        for _ in range(20):
            waited(reader)


def test_a_broker_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "_ANSWER_S", 0.05)
    cluster = filled()
    cluster.bytes_max = 1
    reader = opened(source(cluster))
    found = read(reader, polls=1)
    cluster.silent.add(0)
    for _ in range(3):
        found += waited(reader)
    assert found != every(1, 40)
    cluster.silent.clear()
    for _ in range(3):
        found += waited(reader)
    assert found == every(1, 40)


@pytest.mark.parametrize("held", ["connect", "MetadataRequest", "ListOffsetsRequest"])
def test_a_poll_does_not_wait_for_a_broker_that_hangs(held: str) -> None:
    cluster = filled()
    kafka = source(cluster, start_errand=in_thread, discover_ns=1, bounded=False)
    reader = opened(kafka)
    cluster.held.add(held)
    until(lambda: (read(reader), cluster.waiting)[1])
    # Another poll, a checkpoint and the end, while the broker hangs; a poll that waits for it would
    # come back when nobody waits any more.
    assert read(reader) == []
    states = restored(reader)
    reader.close()
    assert cluster.waiting
    cluster.released.set()
    until(lambda: not cluster.waiting)
    again = opened(kafka)
    again.restore(states)
    assert read_on(again, 40) == every(1, 40)
    again.close()


def test_records_that_are_missing_are_looked_into_without_a_wait() -> None:
    cluster = filled()
    _, states = lost_records(cluster)
    kafka = source(cluster, start_errand=in_thread, on_missing="earliest")
    reader = opened(kafka)
    reader.restore(states)
    cluster.held.add("ListOffsetsRequest")
    until(lambda: (read(reader), cluster.waiting)[1])
    assert read(reader) == []
    assert cluster.waiting
    cluster.released.set()
    assert read_on(reader, 19) == [(0, n) for n in range(21, 40)]
    reader.close()


def read_on(reader: KafkaReader, count: int) -> list[Place]:
    """Read so many records; answers may take a while."""
    found: list[Place] = []

    def enough() -> bool:
        found.extend(read(reader))
        return len(found) >= count

    until(enough)
    return found


def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 50.0
    while not condition():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.001)


def lost_records(cluster: FakeCluster) -> tuple[KafkaReader, list[RestoredState]]:
    """A checkpoint at offset 5, and a log whose first 20 records are gone."""
    reader = opened(source(cluster, start={Partition("t", 0): 0}))
    read(reader, polls=1)
    log = cluster.topics["t"][0]
    log.batches = [each for each in log.batches if each[0] >= 21]
    log.first = 21
    return reader, restored(reader)


def test_records_that_retention_deleted_fail_the_job() -> None:
    cluster = filled()
    _, states = lost_records(cluster)
    reader = opened(source(cluster))
    reader.restore(states)
    with pytest.raises(RecordsMissing, match=r"records 4 to 20 of t-0 .* retention .*on_missing"):
        read(reader)


def test_reading_may_go_on_at_the_oldest_record(caplog: pytest.LogCaptureFixture) -> None:
    cluster = filled()
    _, states = lost_records(cluster)
    reader = opened(source(cluster, on_missing="earliest"))
    reader.restore(states)
    assert read(reader) == [(0, n) for n in range(21, 40)]
    assert "records 4 to 20 of t-0" in caplog.text


def test_a_topic_created_again_is_not_taken_for_the_old_one() -> None:
    cluster = filled()
    before = opened(source(cluster))
    read(before, polls=1)
    fill(cluster.create("t", 1)[0], 0, 50)
    with pytest.raises(RecordsMissing, match="'t' was deleted and created again"):
        opened(source(cluster)).restore(restored(before))
    going_on = opened(source(cluster, on_missing="earliest"))
    going_on.restore(restored(before))
    assert read(going_on) == every(1, 50)


def test_a_topic_created_again_while_it_is_read_fails_the_job() -> None:
    cluster = filled()
    now = [0]
    reader = opened(source(cluster, bounded=False, discover_ns=10, clock=lambda: now[0]))
    read(reader)
    fill(cluster.create("t", 1)[0], 0, 50)
    now[0] = 11
    with pytest.raises(RecordsMissing, match="'t' was deleted and created again"):
        read(reader)


@pytest.mark.parametrize("on_missing", ["error", "earliest"])
def test_a_log_that_lost_its_end_is_told(on_missing: str) -> None:
    cluster = filled()
    before = opened(source(cluster))
    read(before)
    log = cluster.topics["t"][0]
    log.batches, log.end = log.batches[:2], 14
    after = opened(source(cluster, on_missing=on_missing, bounded=False))
    after.restore(restored(before))
    if on_missing == "error":
        with pytest.raises(RecordsMissing, match="t-0 ends at 14, and record 40"):
            read(after)
    else:
        assert read(after) == []
        fill(log, 0, 2)
        assert read(after) == [(0, 14), (0, 15)]


def test_an_error_that_does_not_pass_fails_the_job() -> None:
    cluster = filled()
    reader = opened(source(cluster))
    cluster.errors[Partition("t", 0)] = [0, 29]
    with pytest.raises(HeadraceError, match=r"t-0 .* TOPIC_AUTHORIZATION_FAILED"):
        read(reader)


def test_the_group_hears_of_complete_checkpoints() -> None:
    cluster = filled(partitions=2)
    reader = opened(source(cluster, group="g"))
    reader.completed(1, reader.snapshot())
    read(reader, polls=4)
    reader.completed(2, reader.snapshot())
    reader.close()
    assert cluster.committed == {"g": {Partition("t", 0): 7, Partition("t", 1): 7}}


def test_a_group_that_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cluster = filled()
    reader = opened(source(cluster))
    read(reader, polls=1)
    cluster.group_error = 22
    commits = GroupCommits(cluster.client(), "g", patience_s=1)
    commits.commit(reader.snapshot())
    commits.close()
    assert "not committed to group g" in caplog.text


def refused(sentence: str, cluster: FakeCluster, **options: Any) -> None:
    with pytest.raises(UserError, match=sentence):
        _ = source(cluster, **options).schema


def test_mistakes_are_told_when_the_pipeline_is_built() -> None:
    cluster = filled()
    cluster.create("orders", 1)
    refused("has no topic 'order': did you mean 'orders'", cluster, topics=("order",))
    refused(r"names offset 99 of t-0, .* from 0 on", cluster, start={Partition("t", 0): 99})
    refused("no offset for partition t-0", cluster, start={})
    refused("names t-4", cluster, start={Partition("t", 0): 0, Partition("t", 4): 0})
    cluster.errors[Partition("t", 0)] = [0, 0, 29]
    refused("TOPIC_AUTHORIZATION_FAILED .* grant READ", cluster)
    cluster.topic_errors["t"] = 29
    refused("TOPIC_AUTHORIZATION_FAILED", cluster)
    cluster.topic_errors.clear()
    cluster.group_error = 30
    refused("GROUP_AUTHORIZATION_FAILED .* on the group", cluster, group="g")


def test_a_broker_that_is_not_there_is_told_when_the_pipeline_is_built() -> None:
    cluster = filled()
    cluster.down.add(0)
    with pytest.raises(AddressUnreachable, match=r"Kafka at fake:9000 .* for 0\.2 s"):
        plan(cluster.client(), ["t"], start="earliest", bounded=False, committed=True, group=None)


def described(**options: Any) -> KafkaSource:
    given: dict[str, Any] = {
        "topics": ["t"],
        "servers": "localhost:9092",
        "start": "earliest",
        "stop": None,
        "isolation": "read_committed",
        "columns": None,
        "key": "binary",
        "value": "binary",
        "discover_ns": None,
        "group": None,
        "on_missing": "error",
        "options": {},
    }
    return kafka_source(**{**given, **options})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": []}, "give the names of topics"),
        ({"isolation": "dirty"}, "choose one of 'read_committed'"),
        ({"stop": "now"}, "stop='now'"),
        ({"on_missing": "skip"}, "on_missing='skip'"),
        ({"servers": "host:port"}, "'host:port' is no address"),
        ({"servers": ""}, "give addresses of brokers"),
        ({"start": "middle"}, "start='middle'"),
        ({"start": datetime(2026, 1, 1)}, "has no time zone"),
        ({"start": {("u", 0): 1}}, "names topic 'u', and 't' are read"),
        ({"start": {"t": 1}}, "takes {.topic, partition.: offset}"),
        ({"columns": "value"}, "give a list of names"),
        ({"options": {"sasl_mechanisms": "PLAIN"}}, "did you mean 'sasl_mechanism'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        described(**options)


def test_options_become_a_source() -> None:
    made = described(topics=["t", "t"], start={0: 5}, stop="latest", columns=["value"])
    assert made.topics == ("t",)
    assert made.start == {Partition("t", 0): 5}
    assert made.bounded
    assert made.rows.columns == ("value",)
