"""A session that several use ends with the last of them, if it is to end at all."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import SparkSession

from headrace.engine.spark.shared import SharedSession


class FakeSession:
    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def shared(*, stops: bool) -> tuple[FakeSession, SharedSession]:
    fake: Any = FakeSession()
    return fake, SharedSession(cast(SparkSession, fake), stops=stops)


def test_it_ends_with_the_last_of_its_users() -> None:
    fake, session = shared(stops=True)
    session.enter()
    session.enter()
    session.leave()
    assert (fake.stops, session.is_open) == (0, True)
    session.leave()
    assert (fake.stops, session.is_open) == (1, False)


def test_a_users_own_session_stays() -> None:
    fake, session = shared(stops=False)
    session.enter()
    session.leave()
    assert (fake.stops, session.is_open) == (0, True)
