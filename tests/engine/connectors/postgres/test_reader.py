"""Readers: every row once, through restores at any parallelism and lost connections."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres import pages, source
from headrace.engine.connectors.postgres.connection import Connection, Database
from headrace.engine.connectors.postgres.source import PostgresSource
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.contract.operators import RestoredState, SourceStatus, StateKind

pytestmark = pytest.mark.services

ROWS = 500


@pytest.fixture
def table(db: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of several splits and pages."""
    monkeypatch.setattr(source, "_SPLIT_VALUES", 60)
    monkeypatch.setattr(source, "_SPLIT_BLOCKS", 1)
    monkeypatch.setattr(pages.Ordered.page, "__defaults__", (40,))
    db.psql(
        f"CREATE TABLE t (id bigserial PRIMARY KEY, text text NOT NULL DEFAULT repeat('x', 100));"
        f" INSERT INTO t SELECT FROM generate_series(1, {ROWS})"
    )
    return "t"


@pytest.mark.parametrize("column", ["id", None, "text"])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_read_once_through_restores_at_any_parallelism(
    db: Any, table: str, drive: Callable[..., Any], column: str | None, seed: int
) -> None:
    made = PostgresSource(Database(db.url), table, column, None, 10**9)
    driven = drive(made, seed)
    for parallelism in (2, 3, 1, 4):
        driven.some(parallelism, 12)
    driven.rest(2)
    assert sorted(driven.column("id")) == list(range(1, ROWS + 1))
    assert len(made._splits) == {"id": 8, "text": 1}.get(column or "", len(made._splits))


def test_rows_that_come_later_are_not_read(db: Any, table: str, drive: Callable[..., Any]) -> None:
    made = PostgresSource(Database(db.url), table, "id", None, 10**9)
    db.psql("INSERT INTO t SELECT FROM generate_series(1, 10)")
    driven = drive(made)
    driven.rest(2)
    assert sorted(driven.column("id")) == list(range(1, ROWS + 1))


def test_an_empty_table_ends_at_once(db: Any, drive: Callable[..., Any]) -> None:
    db.psql("CREATE TABLE t (id bigint NOT NULL)")
    for column in ("id", None):
        driven = drive(PostgresSource(Database(db.url), "t", column, None, 10**9))
        driven.rest(2)
        assert driven.column("id") == []


def test_a_killed_server_that_comes_back_costs_no_row(
    db: Any, table: str, drive: Callable[..., Any]
) -> None:
    driven = drive(PostgresSource(Database(db.url), table, "id", None, 20 * 10**9))
    (reader,) = driven.open(1)
    for _ in range(20):
        driven.step(reader)
    db.server.kill()
    back = threading.Timer(0.5, db.server.restart)
    back.start()
    while driven.step(reader) is SourceStatus.MORE:
        pass
    back.join()
    assert driven.column("id") == list(range(1, ROWS + 1))
    reader.close()


def test_a_server_that_stays_away_is_told_by_name(
    db: Any, table: str, drive: Callable[..., Any]
) -> None:
    driven = drive(PostgresSource(Database(db.url), table, "id", None, 10**8))
    (reader,) = driven.open(1)
    db.server.kill()
    with pytest.raises(
        HeadraceError, match=r"source 'operator': the server has been away for 0.1 s"
    ):
        driven.step(reader)
    db.server.restart()


def test_a_growing_table_is_read_once_in_order_beside_interleaved_writers(
    db: Any, connect: Callable[..., Connection], at: Callable[..., Any], table: str
) -> None:
    """Writers commit in another order than they draw their numbers; the reader is restored from
    time to time.
    """
    made = PostgresSource(Database(db.url), table, "id", 1, 10**9)
    rng = random.Random(7)
    writers = [connect() for _ in range(4)]
    open_: set[int] = set()
    seen: list[int] = []
    reader = made.reader()
    reader.open(at(parallelism=1))

    def read(polls: int) -> None:
        nonlocal reader
        for _ in range(polls):
            polled = reader.poll(rng.randint(1, 50))
            assert polled.status is not SourceStatus.END
            for batch in polled.batches:
                seen.extend(batch.column("id").to_pylist())
            reader.commit()
        if rng.random() < 0.1:
            (state,) = reader.snapshot()
            reader.poll(10)  # lost with the attempt
            reader.close()
            reader = made.reader()
            reader.open(at(parallelism=1))
            reader.restore([RestoredState(state.name, StateKind.UNION, state.table())])

    for _ in range(300):
        number = rng.randrange(4)
        writer = writers[number]
        if number not in open_:
            writer.execute("BEGIN")
            open_.add(number)
        writer.execute("INSERT INTO t DEFAULT VALUES")
        if rng.random() < 0.4:
            writer.execute(rng.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
            open_.remove(number)
        read(rng.randint(0, 2))
    for number in open_:
        writers[number].execute("COMMIT")
    read(100)
    read(100)
    expected = [int(row) for row in db.psql("SELECT id FROM t ORDER BY id")]
    assert seen == expected
    reader.close()


def test_a_reader_that_follows_waits_between_two_looks(
    db: Any, at: Callable[..., Any], connect: Callable[..., Connection]
) -> None:
    db.psql("CREATE TABLE t (id bigserial PRIMARY KEY)")
    reader = PostgresSource(Database(db.url), "t", "id", 10**9, 10**9).reader()
    reader.open(at(parallelism=1))
    polled = reader.poll(10)
    assert (polled.status, polled.wait_ns) == (SourceStatus.IDLE, 10**9)
    writer = connect()
    writer.execute("BEGIN")
    writer.execute("INSERT INTO t DEFAULT VALUES")
    db.psql("INSERT INTO t DEFAULT VALUES")
    polled = reader.poll(10)
    assert polled.status is SourceStatus.IDLE
    assert polled.wait_ns < 10**9
    writer.execute("COMMIT")
    (batch,) = reader.poll(10).batches
    assert batch.column(0).to_pylist() == [1, 2]
    assert isinstance(batch, pa.RecordBatch)
    reader.close()
