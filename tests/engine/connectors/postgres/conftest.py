"""A database of its own for each test, on the server of `tests/services`."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres.connection import Connection, Database
from headrace.engine.contract.operators import OperatorContext
from tests.services.postgres import Postgres

_numbers = itertools.count()


@dataclass
class TestDatabase:
    """A database, read and written by `psql`."""

    __test__ = False

    server: Postgres
    url: str

    def psql(self, statement: str) -> list[str]:
        """Rows of the answer, columns joined by `|`."""
        program = next(Path("/usr/lib/postgresql").glob("*/bin/psql"))
        done = subprocess.run(
            [str(program), "-XAtq", "-v", "ON_ERROR_STOP=1", self.url],
            input=statement,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def prepared(self) -> list[str]:
        """Names of open prepared transactions of this database."""
        return self.psql(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        )

    def stages(self) -> list[str]:
        """Names of staging tables."""
        return self.psql(
            r"SELECT relname FROM pg_class WHERE relname ~ '^headrace_[0-9a-f]{12}_'"
            " AND relkind = 'r' ORDER BY relname"
        )


@pytest.fixture
def db(postgres: Postgres) -> Iterator[TestDatabase]:
    """An empty database."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    postgres.psql(f"CREATE DATABASE {name}")
    url = postgres.uri.rsplit("/", 1)[0]
    db = TestDatabase(postgres, f"{url}/{name}")
    yield db
    for gid in db.prepared():
        db.psql(f"ROLLBACK PREPARED '{gid}'")
    postgres.psql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def connect(db: TestDatabase) -> Iterator[Callable[..., Connection]]:
    """Opens connections, and closes them after the test."""
    opened: list[Connection] = []

    def connect(name: str = "test") -> Connection:
        opened.append(Database(db.url).connect(name))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def at() -> Callable[..., OperatorContext]:
    """Contexts of sink "out" of job "job"."""

    def at(
        index: int = 0, epoch: int = 1, owner: str = "run", parallelism: int = 2
    ) -> OperatorContext:
        return OperatorContext("job", "out", index, parallelism, 128, epoch, owner=owner)

    return at


@pytest.fixture
def rows() -> Callable[..., pa.RecordBatch]:
    """Makes rows of `id` and `text`."""

    def rows(*ids: int, text: str = "x") -> pa.RecordBatch:
        return pa.record_batch({"id": pa.array(ids, pa.int64()), "text": [text] * len(ids)})

    return rows
