"""Rows that are committed out of order wait until nothing can come before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres.columns import describe
from headrace.engine.connectors.postgres.connection import Connection
from headrace.engine.connectors.postgres.horizon import ANY_WRITER, Horizon, writers_of
from headrace.engine.connectors.postgres.pages import Ordered

pytestmark = pytest.mark.services

Connect = Callable[..., Connection]


class Follower:
    """Reads what is settled, as the reader does."""

    def __init__(self, connection: Connection, column: str = "id", table: str = "t") -> None:
        self.connection = connection
        type_ = {"id": "bigint", "at": "timestamptz"}[column]
        self.ordered = Ordered(table, column, type_, ('"id"',), pa.schema([("id", pa.int64())]))
        found = describe(connection, table)
        assert found is not None
        writers = writers_of(found.oid) if column == "id" else ANY_WRITER
        self.horizon = Horizon(self.ordered, writers)
        self.after: str | None = None

    def read(self) -> list[int]:
        upto = self.horizon.settled(self.connection, self.after)
        if upto is None:
            return []
        page = self.ordered.page(self.connection, self.after, upto)
        self.after = upto
        ids: list[int] = page.take(1000)[0].column(0).to_pylist() if page.left else []
        return ids


@pytest.fixture
def follow(db: Any, connect: Connect) -> Callable[..., Follower]:
    db.psql("CREATE TABLE t (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
    return lambda column="id", table="t": Follower(connect(), column, table)


INSERT = "INSERT INTO t DEFAULT VALUES"


def test_without_writers_rows_are_settled_at_once(follow: Callable[..., Follower], db: Any) -> None:
    follower = follow()
    assert follower.read() == []
    db.psql(f"{INSERT}; {INSERT}")
    assert follower.read() == [1, 2]
    assert follower.read() == []
    db.psql(INSERT)
    assert follower.read() == [3]


@pytest.mark.parametrize("column", ["id", "at"])
def test_a_row_waits_for_an_older_open_transaction(
    follow: Callable[..., Follower], connect: Connect, column: str
) -> None:
    follower, first, second = follow(column), connect(), connect()
    first.execute("BEGIN")
    first.execute(INSERT)
    second.execute(INSERT)
    assert follower.read() == []
    assert follower.horizon.waits
    first.execute("COMMIT")
    assert follower.read() == [1, 2]


def test_a_row_does_not_wait_longer_for_an_aborted_transaction(
    follow: Callable[..., Follower], connect: Connect
) -> None:
    follower, first, second = follow(), connect(), connect()
    first.execute("BEGIN")
    first.execute(INSERT)
    second.execute(INSERT)
    assert follower.read() == []
    first.execute("ROLLBACK")
    assert follower.read() == [2]


def test_a_number_that_was_drawn_long_before_its_row_is_waited_for(
    follow: Callable[..., Follower], connect: Connect
) -> None:
    """Its transaction has a number of its own only later than the row that overtakes it, which is
    what a comparison of `xmin` goes wrong by.
    """
    follower, first, second = follow(), connect(), connect()
    second.execute(INSERT)
    assert follower.read() == [1]
    first.execute("BEGIN")
    first.value("SELECT nextval('t_id_seq')")
    second.execute(INSERT)
    assert follower.read() == []
    first.execute("INSERT INTO t (id) VALUES (2)")
    assert follower.read() == []
    first.execute("COMMIT")
    assert follower.read() == [2, 3]


def test_a_time_that_was_taken_before_the_first_statement_on_the_table_is_waited_for(
    follow: Callable[..., Follower], connect: Connect
) -> None:
    follower, first, second = follow("at"), connect(), connect()
    first.execute("BEGIN")
    first.value("SELECT now()")
    second.execute(INSERT)
    assert follower.read() == []
    first.execute(INSERT)
    first.execute("COMMIT")
    # Number 2 has the earlier time.
    assert follower.read() == [2, 1]


def test_a_prepared_transaction_is_waited_for(
    follow: Callable[..., Follower], connect: Connect, db: Any
) -> None:
    for column in ("id", "at"):
        follower, first = follow(column), connect()
        seen = follower.read()
        first.execute("BEGIN")
        first.execute(INSERT)
        first.execute("PREPARE TRANSACTION 'open'")
        db.psql(INSERT)
        assert follower.read() == []
        first.execute("COMMIT PREPARED 'open'")
        assert len(follower.read()) == 2
        assert len(seen) == 0 if column == "id" else 2


def test_new_writers_do_not_hold_back_older_rows(
    follow: Callable[..., Follower], connect: Connect
) -> None:
    """A table that always has some open transaction is read all the same."""
    follower, first, second, third = follow(), connect(), connect(), connect()
    first.execute("BEGIN")
    first.execute(INSERT)
    third.execute(INSERT)
    assert follower.read() == []
    second.execute("BEGIN")
    second.execute(INSERT)
    first.execute("COMMIT")
    assert follower.read() == [1, 2]
    second.execute("COMMIT")
    assert follower.read() == [3]


def test_readers_of_the_table_and_writers_of_others_are_not_waited_for(
    follow: Callable[..., Follower], connect: Connect, db: Any
) -> None:
    db.psql("CREATE TABLE other (n int)")
    follower, reader, writer = follow(), connect(), connect()
    reader.execute("BEGIN")
    reader.value("SELECT count(*) FROM t")
    writer.execute("BEGIN")
    writer.execute("INSERT INTO other VALUES (1)")
    db.psql(INSERT)
    assert follower.read() == [1]


def test_parts_of_a_partitioned_table_count(
    follow: Callable[..., Follower], connect: Connect, db: Any
) -> None:
    db.psql(
        "CREATE TABLE p (id bigserial, at timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE"
        " (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000)"
    )
    follower, first = follow(table="p"), connect()
    first.execute("BEGIN")
    first.execute("INSERT INTO p1 (id) VALUES (1)")
    db.psql("INSERT INTO p (id) VALUES (2)")
    assert follower.read() == []
    first.execute("COMMIT")
    assert follower.read() == [1, 2]
