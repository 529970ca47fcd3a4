"""Connections: errors of three kinds, and what they tell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.connectors.postgres.connection import (
    Connection,
    Database,
    Patience,
    Refused,
    Unavailable,
    identifier,
    literal,
)
from headrace.engine.contract.errors import AddressUnreachable, UserError


def test_nobody_at_the_address_is_told_without_the_password() -> None:
    database = Database("postgresql://joe:secret@127.0.0.1:1/x")
    with pytest.raises(AddressUnreachable, match="here: the server does not answer") as told:
        database.ask("here")
    assert "secret" not in str(told.value) + repr(database)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://joe:secret@host/x",
        "postgresql:/joe:secret@host/x",
        "postgresql://joe:secret@host/x?secret",
        "postgresql://joe:secret@host:port/x?password=secret",
        "host=h password='secret",
        "password secret",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(UserError) as told:
        Database(url).ask("here")
    assert "secret" not in str(told.value)


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(UserError, match=r"pip install 'headrace\[postgres\]'"):
        Database("postgresql://host/x").ask("here")


@pytest.mark.services
def test_a_database_that_is_not_there_is_a_users_mistake(db: Any) -> None:
    with pytest.raises(UserError, match=r'database "nothing" does not exist; check url='):
        Database(db.url.rsplit("/", 1)[0] + "/nothing").ask("here")


@pytest.mark.services
def test_a_refusal_is_the_servers_sentence_and_leaves_the_session(
    connect: Callable[..., Connection],
) -> None:
    connection = connect()
    with pytest.raises(Refused, match=r'relation "nothing" does not exist$') as refused:
        connection.execute("INSERT INTO nothing VALUES (1)")
    assert refused.value.sqlstate == "42P01"
    assert connection.value("SELECT 1") == 1


@pytest.mark.services
def test_a_lost_connection_is_told_from_a_refusal(connect: Callable[..., Connection]) -> None:
    connection, other = connect(), connect()
    pid = connection.value("SELECT pg_backend_pid()")
    other.value(f"SELECT pg_terminate_backend({pid})")
    with pytest.raises(Unavailable):
        for _ in range(100):
            connection.value("SELECT 1")


@pytest.mark.services
def test_other_sessions_see_its_name(connect: Callable[..., Connection]) -> None:
    connection = connect("it's me")
    assert connection.value("SELECT current_setting('application_name')") == "it's me"


@pytest.mark.services
def test_names_and_values_are_quoted(connect: Callable[..., Connection]) -> None:
    odd = "a'b\"c\\d"
    (row,) = connect().rows(f"SELECT {literal(odd)} AS {identifier(odd)}")
    assert row == {odd: odd}


def test_patience_doubles_its_waits_and_ends() -> None:
    now, slept = [0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += round(seconds * 1e9)

    patience = Patience(7_000_000_000, clock=lambda: now[0], sleep=sleep)
    while patience.wait():
        pass
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
