"""Columns as parts of a record, and partitions of records."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.outgoing import Layout, Partitioner, Rows
from headrace.engine.contract.errors import HeadraceError, UserError

BATCH = pa.record_batch(
    {
        "id": pa.array([1, 2, 3]),
        "name": pa.array(["a", None, "c"]),
        "at": pa.array([5, 6, 7], pa.timestamp("us")),
        "to": pa.array(["x", "y", "x"]),
    }
)


def split(partitioner: Partitioner, rows: Rows, count: int = 4) -> list[tuple[int, list[bytes]]]:
    batch = pa.record_batch({"p": pa.array(range(len(rows.values)), pa.int64())})
    return [
        (partition.index, each.values.to_pylist())
        for partition, each in partitioner.split("t", count, batch, rows)
    ]


def test_value_is_json_of_all_columns_without_a_place_of_their_own() -> None:
    rows = Layout(topic_column="to", key="id", timestamp="at").rows(BATCH)
    assert [json.loads(value) for value in rows.values.to_pylist()][1] == {
        "id": 2,
        "name": None,
        "at": "1970-01-01T00:00:00.000006",
    }
    assert rows.keys is not None
    assert rows.keys.to_pylist() == [b"1", b"2", b"3"]


def test_value_column_is_taken_as_it_is_and_null_stays_null() -> None:
    rows = Layout(topic="t", value="name").rows(BATCH)
    assert rows.values.to_pylist() == [b"a", None, b"c"]
    assert rows.keys is None


def test_rows_are_told_apart_by_their_topic_in_order() -> None:
    layout = Layout(topic_column="to", value="name")
    found = {topic: part.column("id").to_pylist() for topic, part in layout.topics(BATCH)}
    assert found == {"x": [1, 3], "y": [2]}


def test_record_without_a_topic_is_refused() -> None:
    batch = pa.record_batch({"to": pa.array(["x", None])})
    with pytest.raises(HeadraceError, match="'to' is null or empty"):
        list(Layout(topic_column="to").topics(batch))


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (Layout(topic="t", key="nmae"), "key='nmae' is no column of the stream.*'name'"),
        (Layout(topic="t", key="at"), "key='at' is of type timestamp.*a key is binary"),
        (Layout(topic="t", value="id"), "value='id' is of type int64"),
        (Layout(topic="t", partition="name"), "a partition is a whole number"),
        (Layout(topic="t", headers="name"), "headers are list<struct"),
    ],
)
def test_columns_that_do_not_fit_are_named(layout: Layout, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        layout.check(BATCH.schema)


def test_columns_that_fit_are_taken() -> None:
    Layout(topic_column="to", key="id", timestamp="at").check(BATCH.schema)


@pytest.mark.parametrize("topics", [{}, {"topic": "t", "topic_column": "to"}])
def test_topic_is_stated_in_one_way(topics: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"give topic=.*or topic_column="):
        Layout(**topics)


def test_equal_keys_share_a_partition_in_order() -> None:
    keys = pa.array([b"a", b"b", b"a", b"b"], pa.binary())
    rows = Rows(pa.array([b"0", b"1", b"2", b"3"], pa.binary()), keys)
    found = split(Partitioner(None), rows, 100)
    assert sorted(values for _, values in found) == [[b"0", b"2"], [b"1", b"3"]]


def test_records_without_keys_take_partitions_in_turn() -> None:
    rows = Rows(pa.array([b"0", b"1"], pa.binary()))
    partitioner = Partitioner(None)
    assert [split(partitioner, rows, 3)[0][0] for _ in range(4)] == [1, 2, 0, 1]


def test_records_without_keys_among_others_share_one_partition() -> None:
    keys = pa.array([None, b"b", None], pa.binary())
    rows = Rows(pa.array([b"0", b"1", b"2"], pa.binary()), keys)
    assert [b"0", b"2"] in [values for _, values in split(Partitioner(None), rows, 100)]


def test_stated_partitions_are_kept_and_checked() -> None:
    rows = Rows(pa.array([b"0", b"1", b"2"], pa.binary()))
    assert split(Partitioner("p"), rows) == [(0, [b"0"]), (1, [b"1"]), (2, [b"2"])]
    with pytest.raises(HeadraceError, match=r"names partition 2.*partitions 0 to 1"):
        split(Partitioner("p"), rows, 2)


def test_partitions_are_those_of_the_topic() -> None:
    rows = Rows(pa.array([b"0"], pa.binary()))
    batch = pa.record_batch({"p": pa.array([0])})
    ((partition, _),) = Partitioner("p").split("orders", 1, batch, rows)
    assert partition == Partition("orders", 0)
