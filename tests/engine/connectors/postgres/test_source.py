"""What is read, planned and refused when the pipeline is built."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.contract.errors import UserError

pytestmark = pytest.mark.services

TYPES = """
CREATE TYPE mood AS ENUM ('happy', 'sad');
CREATE TABLE t (
    id bigint PRIMARY KEY, small smallint, real real, price numeric(10,2), free numeric, ok boolean,
    day date, clock time, local timestamp, instant timestamptz, data bytea, document jsonb,
    identity uuid, mood mood, tags text[], address inet, span interval
);
INSERT INTO t VALUES (1, 2, 1.5, 3.10, 1e30, true, '2026-02-28', '01:02:03', '2026-02-28 12:00',
    '2026-02-28 12:00+00', '\\x00ff', '{"a": 1}', '6e7f8c9a-1b2c-4d5e-8f90-a1b2c3d4e5f6', 'sad',
    '{a,b}', '10.0.0.1', '90 s'), (2);
"""


def test_types_arrive_or_become_text(db: Any) -> None:
    db.psql(TYPES.replace("(2)", "(2" + ", NULL" * 16 + ")"))
    stream = hr.read.postgres("t", url=db.url, column="id", name="rows")
    job = hr.Job("types", stream.write.collect(name="out"))
    first, second = job.run("threads", parallelism=1).collected["out"].to_pylist()
    noon = datetime.datetime(2026, 2, 28, 12)
    assert first == {
        "id": 1,
        "small": 2,
        "real": 1.5,
        "price": decimal.Decimal("3.10"),
        "free": str(10**30),
        "ok": True,
        "day": noon.date(),
        "clock": datetime.time(1, 2, 3),
        "local": noon,
        "instant": noon.replace(tzinfo=datetime.UTC),
        "data": b"\x00\xff",
        "document": '{"a": 1}',
        "identity": str(uuid.UUID("6e7f8c9a-1b2c-4d5e-8f90-a1b2c3d4e5f6")),
        "mood": "sad",
        "tags": ["a", "b"],
        "address": "10.0.0.1/32",
        "span": "00:01:30",
    }
    assert set(second.values()) == {2, None}
    assert stream.schema.field("price").type == pa.decimal128(10, 2)


def test_a_query_is_read_in_the_order_of_its_column(db: Any) -> None:
    db.psql("CREATE TABLE t (id bigint); INSERT INTO t SELECT generate_series(1, 1000)")
    query = "SELECT id % 10 AS digit, id * 2 AS twice FROM t WHERE id > 500;"
    stream = hr.read.postgres(query, url=db.url, column="twice", name="rows")
    table = hr.Job("query", stream.write.collect(name="out")).run("threads").collected["out"]
    assert sorted(table["twice"].to_pylist()) == list(range(1002, 2001, 2))


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        ("nothing", {}, "there is no table nothing"),
        ("SELECT * FROM nothing", {}, 'relation "nothing" does not exist'),
        ("SELECT 1 AS a", {}, "a query needs column="),
        ("v", {}, "v needs column="),
        ("t", {"column": "idd"}, "no column 'idd'; did you mean 'id'"),
        ("t", {"column": "price"}, "column='price' is numeric"),
        ("t", {"column": "note"}, "may be NULL"),
        ("SELECT 1 AS a, 2 AS a", {"column": "a"}, "several columns are called 'a'"),
        ("t", {"follow": "1s"}, "follow= needs column="),
        ("t", {"follow": "1s", "column": "name"}, "in the order of numbers of a sequence"),
        ("t", {"follow": "1s", "column": "quick"}, "CACHE 20"),
        ("v", {"follow": "1s", "column": "id"}, "may be NULL|follow= reads a table"),
        ("t", {"follow": "1s", "column": "id", "parallelism": 2}, "one subtask follows"),
    ],
)
def test_what_cannot_be_read_is_refused(db: Any, table: str, options: Any, told: str) -> None:
    db.psql(
        "CREATE SEQUENCE s CACHE 20; CREATE TABLE t (id bigint PRIMARY KEY, price numeric,"
        " note text, name text NOT NULL, quick bigint NOT NULL DEFAULT nextval('s'));"
        " INSERT INTO t VALUES (1, 1, NULL, ''); CREATE VIEW v AS SELECT * FROM t"
    )
    if "CACHE" not in told:
        db.psql("ALTER SEQUENCE s CACHE 1")
    with pytest.raises(UserError, match=told):
        hr.read.postgres(table, url=db.url, name="rows", **options)
