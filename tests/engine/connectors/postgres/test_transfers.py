"""Both ways of a transaction's rows, statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres.connection import Connection
from headrace.engine.connectors.postgres.transfers import Prepared, Staged, Transfer

pytestmark = pytest.mark.services

TRANSFERS: list[Callable[[], Transfer]] = [
    lambda: Prepared("one", "public", "orders"),
    lambda: Staged("one", "public", "orders", ("text", "id")),
]


@pytest.mark.parametrize("make", TRANSFERS)
def test_a_transfer_knows_on_another_connection_whether_it_is_sealed(
    db: Any, connect: Callable[..., Connection], rows: Callable[..., pa.RecordBatch], make: Any
) -> None:
    db.psql(
        "CREATE TABLE orders (id bigint PRIMARY KEY, text text, price numeric NOT NULL DEFAULT 1)"
    )
    transfer, connection = make(), connect()
    transfer.begin(connection)
    transfer.send(connection, pa.Table.from_batches([rows(1, 2)]))
    assert not transfer.is_sealed(connect())
    transfer.seal(connection)
    assert transfer.is_sealed(connect())
    assert db.psql("SELECT count(*) FROM orders") == ["0"]


def test_a_staging_table_keeps_the_order_of_its_rows(
    db: Any, connect: Callable[..., Connection], rows: Callable[..., pa.RecordBatch]
) -> None:
    db.psql("CREATE TABLE orders (id bigint PRIMARY KEY, text text)")
    transfer, connection = Staged("one", "public", "orders", ("id", "text")), connect()
    transfer.begin(connection)
    for ids in ((3, 1), (2, 1)):
        transfer.send(connection, pa.Table.from_batches([rows(*ids)]))
    transfer.seal(connection)
    assert db.psql("SELECT id FROM one ORDER BY __headrace_order") == ["3", "1", "2", "1"]
