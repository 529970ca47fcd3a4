"""A writer's transactions are durable and invisible at pre-commit, whatever its connection does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres import writer
from headrace.engine.connectors.postgres.connection import Connection, Database
from headrace.engine.connectors.postgres.sink import PostgresSink
from headrace.engine.connectors.postgres.writer import PostgresWriter
from headrace.engine.contract.errors import HeadraceError

pytestmark = pytest.mark.services

Rows = Callable[..., pa.RecordBatch]
Open = Callable[..., PostgresWriter]


@pytest.fixture
def open_writer(db: Any, at: Callable[..., Any], rows: Rows) -> Iterator[Open]:
    """Opens writers into `orders`; "insert" or "upsert"."""
    db.psql("CREATE TABLE orders (id bigint PRIMARY KEY, text text)")
    opened = []

    def open_writer(mode: str = "insert", retry_s: float = 20, **context: Any) -> PostgresWriter:
        key = ("id",) if mode == "upsert" else ()
        sink = PostgresSink(Database(db.url), "orders", mode, key, int(retry_s * 1e9))  # type: ignore[arg-type]
        sink.check(rows(1).schema)
        made = sink.writer()
        made.open(at(**context))
        opened.append(made)
        return made

    yield open_writer
    for made in opened:
        made.close()


def sessions(db: Any) -> list[str]:
    return list(
        db.psql(
            "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, 'headrace_')"
            " AND datname = current_database()"
        )
    )


def kill_sessions(db: Any) -> None:
    for pid in sessions(db):
        db.psql(f"SELECT pg_terminate_backend({pid})")


def durable(db: Any, mode: str) -> list[str]:
    names: list[str] = db.prepared() if mode == "insert" else db.stages()
    return names


def shown(db: Any, mode: str) -> list[str]:
    """Rows after the commit of all that is durable."""
    for name in durable(db, mode):
        if mode == "insert":
            db.psql(f"COMMIT PREPARED '{name}'")
        else:
            db.psql(f"INSERT INTO orders (id, text) SELECT id, text FROM {name}; DROP TABLE {name}")
    return list(db.psql("SELECT id FROM orders ORDER BY id"))


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_rows_are_durable_and_invisible_after_a_precommit(
    db: Any, open_writer: Open, rows: Rows, mode: str
) -> None:
    made = open_writer(mode)
    assert made.precommit(1) == ()
    made.write(rows(1, 2))
    made.write(rows(3))
    (first,) = made.precommit(2)
    made.write(rows(4))
    (second,) = made.precommit(3)
    assert durable(db, mode) == [first.id, second.id]
    assert db.psql("SELECT count(*) FROM orders") == ["0"]
    made.close()
    assert shown(db, mode) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_rows_that_were_not_precommitted_vanish_with_the_writer(
    db: Any, open_writer: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(writer, "_PIECE_BYTES", 1)
    made = open_writer(mode)
    made.write(rows(1))
    made.close()
    assert (durable(db, mode), shown(db, mode)) == ([], [])


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_lost_connection_costs_no_row_and_no_error(
    db: Any, open_writer: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(writer, "_PIECE_BYTES", 1)
    made = open_writer(mode)
    made.write(rows(1))
    kill_sessions(db)
    made.write(rows(2))
    kill_sessions(db)
    made.precommit(1)
    assert shown(db, mode) == ["1", "2"]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_killed_server_that_comes_back_costs_no_row_and_no_error(
    db: Any, open_writer: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(writer, "_PIECE_BYTES", 1)
    made = open_writer(mode)
    made.write(rows(1))
    made.precommit(1)
    made.write(rows(2))
    db.server.kill()
    back = threading.Timer(1, db.server.restart)
    back.start()
    made.write(rows(3))
    made.precommit(2)
    back.join()
    assert len(durable(db, mode)) == 2
    assert shown(db, mode) == ["1", "2", "3"]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
@pytest.mark.parametrize("applied", [True, False])
def test_a_precommit_whose_answer_was_lost_happens_once(
    db: Any,
    open_writer: Open,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    applied: bool,
) -> None:
    statement = "PREPARE TRANSACTION" if mode == "insert" else "COMMIT"
    execute = Connection.execute
    losses: list[str] = []

    def lossy(self: Connection, text: str) -> None:
        if text.startswith(statement) and not losses:
            losses.append(text)
            if applied:
                execute(self, text)
            kill_sessions(db)
        execute(self, text)

    monkeypatch.setattr(Connection, "execute", lossy)
    made = open_writer(mode)
    made.write(rows(1, 2))
    (transaction,) = made.precommit(1)
    assert losses
    assert durable(db, mode) == [transaction.id]
    if mode == "insert":
        number = transaction.payload["xid"]
        assert db.psql(f"SELECT pg_xact_status('{number}')") == ["in progress"]
    assert shown(db, mode) == ["1", "2"]


def test_the_session_of_a_lost_connection_is_ended_first(
    db: Any, open_writer: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows have unique keys, for which the new session would wait."""
    monkeypatch.setattr(writer, "_PIECE_BYTES", 1)
    made = open_writer()
    made.write(rows(1))
    (old,) = sessions(db)
    # The network breaks: the server does not hear of it.
    lost, made._connection = made._connection, None
    made._begun, made._sent = False, 0
    made.precommit(1)
    assert old not in sessions(db)
    assert shown(db, "insert") == ["1"]
    assert lost is not None
    lost.close()


def test_a_server_that_stays_away_fails_the_attempt_by_name(
    db: Any, open_writer: Open, rows: Rows
) -> None:
    made = open_writer(retry_s=0.3)
    made.write(rows(1))
    db.server.kill()
    began = time.monotonic()
    with pytest.raises(HeadraceError, match=r"sink 'out': the server has been away for 0.3 s"):
        made.precommit(1)
    assert time.monotonic() - began < 10
    db.server.restart()


def test_too_many_rows_to_be_sent_again_fail_the_attempt_by_name(
    db: Any, open_writer: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_PIECE_BYTES", 1)
    monkeypatch.setattr(writer, "_KEPT_BYTES_MAX", 50)
    made = open_writer()
    for n in range(5):
        made.write(rows(n))
    assert made._kept == []
    kill_sessions(db)
    with pytest.raises(HeadraceError, match="too much to be sent again"):
        made.precommit(1)


def test_a_row_that_the_table_refuses_is_told_in_the_servers_words(
    db: Any, open_writer: Open, rows: Rows
) -> None:
    made = open_writer()
    made.write(rows(1, 1))
    with pytest.raises(HeadraceError, match="sink 'out': the server says: duplicate key value"):
        made.precommit(1)
    assert db.prepared() == []


def test_a_full_table_of_prepared_transactions_is_waited_for(
    db: Any, open_writer: Open, rows: Rows
) -> None:
    limit = int(db.psql("SHOW max_prepared_transactions")[0])
    for n in range(limit):
        db.psql(f"BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'full {n}'")
    made = open_writer()
    made.write(rows(1))
    free = threading.Timer(1, lambda: db.psql("ROLLBACK PREPARED 'full 0'"))
    free.start()
    (transaction,) = made.precommit(1)
    free.join()
    assert transaction.id in db.prepared()
