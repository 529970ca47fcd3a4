"""Fixtures `kafka`, `postgres` and `s3`: a service that runs when a test begins.

A service that nobody started before the tests is stopped after them. A test may kill or freeze a
service: the next test finds the service up again. `spark_tables` is no service, but a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from .kafka import Kafka
from .postgres import Postgres
from .process import Unavailable, is_running
from .s3 import S3
from .service import Service
from .tables import SparkTables

S = TypeVar("S", bound=Service)


@pytest.fixture(scope="session")
def kafka_service() -> Iterator[Kafka]:
    """A broker for all tests."""
    yield from _serve(Kafka())


@pytest.fixture
def kafka(kafka_service: Kafka) -> Kafka:
    """A broker that answers."""
    return _revived(kafka_service)


@pytest.fixture(scope="session")
def postgres_service() -> Iterator[Postgres]:
    """A database server for all tests."""
    yield from _serve(Postgres())


@pytest.fixture
def postgres(postgres_service: Postgres) -> Postgres:
    """A database server that answers."""
    return _revived(postgres_service)


@pytest.fixture(scope="session")
def s3_service() -> Iterator[S3]:
    """An object store for all tests."""
    yield from _serve(S3())


@pytest.fixture
def s3(s3_service: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An object store that answers, and is the one of the test's environment variables."""
    _revived(s3_service)
    for name, value in s3_service.environment.items():
        monkeypatch.setenv(name, value)
    return s3_service


@pytest.fixture(scope="session")
def spark_tables() -> SparkTables:
    """Spark as a reader of tables."""
    reader = SparkTables()
    try:
        reader.install()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return reader


def _serve(service: S) -> Iterator[S]:
    try:
        begun = service.start()
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield service
    if begun:
        service.stop()


def _revived(service: S) -> S:
    facts = service.facts
    if is_running(facts):
        service.thaw()
    else:
        service.restart()
    return service
