"""What a user is told before the job runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.connectors.postgres.connection import Connection, Database
from headrace.engine.connectors.postgres.sink import Mode, PostgresSink
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import Transaction
from headrace.testing import check_sink

pytestmark = pytest.mark.services

TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, text text)"

LOSE = {"insert": "ROLLBACK PREPARED '{}'", "upsert": "DROP TABLE {}"}


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_it_conforms(db: Any, mode: Mode) -> None:
    db.psql(TABLE if mode == "upsert" else "CREATE TABLE orders (id bigint, text text)")

    def make() -> PostgresSink:
        key = ("id",) if mode == "upsert" else ()
        sink = PostgresSink(Database(db.url), "orders", mode, key, 10**10)
        sink.check(pa.schema([("id", pa.int64()), ("text", pa.string())]))
        return sink

    def lose(transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            db.psql(LOSE[mode].format(transaction.id))

    def rows() -> list[dict[str, Any]]:
        lines = db.psql("SELECT row_to_json(orders) FROM orders")
        return [json.loads(line) for line in lines]

    check_sink(make, rows, lose=lose, left_open=lambda: [*db.prepared(), *db.stages()])


def stream(**columns: Any) -> hr.Stream:
    columns = columns or {"id": [1], "text": ["a"]}
    return hr.read.batches([pa.record_batch(columns)], name="rows")


def test_a_table_that_fits_is_taken(db: Any) -> None:
    db.psql(TABLE)
    sink = stream().write.postgres("orders", url=db.url, name="out")
    assert sink.delivery == "exactly-once"


@pytest.mark.parametrize("table", ["ordes", "nowhere.orders", "pg_locks"])
def test_what_is_no_table_is_refused(db: Any, table: str) -> None:
    db.psql(TABLE)
    with pytest.raises(UserError, match=f"{table} in the database"):
        stream().write.postgres(table, url=db.url, name="out")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "upsrt"}, "did you mean 'upsert'"),
        ({"mode": "upsert"}, "needs key="),
        ({"key": ["id"]}, "mode='insert' has none"),
        ({"mode": "upsert", "key": ["ids"]}, "no column 'ids' is written"),
        ({"mode": "upsert", "key": ["text"]}, r"no unique index on exactly \['text'\]"),
        ({"retry": "soon"}, "retry"),
    ],
)
def test_options_that_do_not_fit_are_refused(db: Any, options: Any, told: str) -> None:
    db.psql(TABLE)
    with pytest.raises(UserError, match=told):
        stream().write.postgres("orders", url=db.url, name="out", **options)


def test_a_server_without_prepared_transactions_is_refused_for_inserts(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.psql(f"{TABLE}; CREATE FUNCTION zero(text) RETURNS text LANGUAGE sql AS $$ SELECT '0' $$")
    asked = Connection.value

    def value(self: Any, query: str) -> Any:
        return asked(self, query.replace("current_setting('max_prep", "zero('max_prep"))

    monkeypatch.setattr(Connection, "value", value)
    with pytest.raises(UserError, match="max_prepared_transactions is 0"):
        stream().write.postgres("orders", url=db.url, name="out")
    stream().write.postgres("orders", url=db.url, mode="upsert", key=["id"], name="out")


@pytest.mark.parametrize(
    ("granted", "options", "missing"),
    [
        ("", {}, "INSERT"),
        ("GRANT INSERT ON orders TO {user}", {"mode": "upsert", "key": ["id"]}, "UPDATE"),
        (
            "GRANT INSERT, UPDATE, SELECT ON orders TO {user}",
            {"mode": "upsert", "key": ["id"]},
            "may not create tables in schema public",
        ),
    ],
)
def test_rights_that_are_lacking_are_named(
    db: Any, granted: str, options: Any, missing: str
) -> None:
    user = "joe_" + db.url.rsplit("/", 1)[1]
    db.psql(f"{TABLE}; CREATE ROLE {user} LOGIN; {granted.format(user=user)}")
    try:
        with pytest.raises(UserError, match=missing):
            stream().write.postgres(
                "orders", url=db.url.replace("postgres@", f"{user}@"), name="out", **options
            )
    finally:
        db.psql(f"DROP OWNED BY {user}; DROP ROLE {user}")


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_job_shows_every_row_once(db: Any, tmp_path: Path, checkpoints: bool, mode: str) -> None:
    db.psql("CREATE TABLE numbers (sequence bigint PRIMARY KEY, key bigint)")
    numbers = hr.read.sequence(5000, name="numbers").select("sequence", "key")
    options: Any = {"mode": mode, "key": ["sequence"]} if mode == "upsert" else {}
    job = hr.Job("job", numbers.write.postgres("numbers", url=db.url, name="out", **options))
    where = hr.Checkpoints(str(tmp_path), interval="0.2s") if checkpoints else None
    job.run("threads", parallelism=2, checkpoints=where)
    assert db.psql("SELECT count(*), sum(sequence) FROM numbers") == ["5000|12497500"]
    assert db.prepared() == []
    assert db.stages() == []


def test_dead_letters_go_into_a_table(db: Any) -> None:
    db.psql("CREATE TABLE letters (operator text, error text, message text, record jsonb)")

    def check(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 2:
            raise ValueError("no twos")
        return row

    checked = stream(id=[1, 2], data=[b"\x01", b"\x02"]).map(check, on_error="route", name="check")
    letters = checked.errors.write.postgres("letters", url=db.url, name="letters")
    result = hr.Job("letters", checked.write.collect(name="out"), letters).run("threads")
    assert result.collected["out"].num_rows == 1
    assert db.psql("SELECT operator, error, record FROM letters") == [
        'check|ValueError|{"id": 2, "data": "02"}'
    ]
