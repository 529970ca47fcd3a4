"""Sessions of earlier writers are ended."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.engine.connectors.postgres import sessions
from headrace.engine.connectors.postgres.connection import Connection, Unavailable
from headrace.engine.connectors.postgres.sessions import end_sessions

pytestmark = pytest.mark.services


def test_only_sessions_that_are_over_are_ended(connect: Callable[..., Connection]) -> None:
    over, other, foreign = connect("headrace_a_1"), connect("headrace_b_1"), connect("psql")
    end_sessions(connect("headrace_a_2"), lambda name: name.startswith("headrace_a_"))
    for connection, ended in ((over, True), (other, False), (foreign, False)):
        try:
            connection.value("SELECT 1")
            assert not ended
        except Unavailable:
            assert ended


def test_a_session_that_does_not_end_is_named(
    connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_WAIT_S", 0.1)
    stays, ender = connect("headrace_a_1"), connect()
    asked = ender.rows
    monkeypatch.setattr(ender, "rows", lambda query: [] if "terminate" in query else asked(query))
    began = time.monotonic()
    with pytest.raises(Unavailable, match="does not end"):
        end_sessions(ender, lambda name: name == "headrace_a_1")
    assert time.monotonic() - began < 5
    assert stays.value("SELECT 1") == 1
