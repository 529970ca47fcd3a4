"""The sink: what a user may ask for, checked against the server before the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import pyarrow as pa

from ...contract.connectors import Delivery
from ...contract.errors import UserError
from ...contract.suggestion import did_you_mean
from .columns import Converter, Table, check_columns, describe
from .committer import COMMITS, Committer, PreparedCommitter, StagedCommitter
from .connection import Connection, Database, Refused, Unavailable, identifier
from .names import WriterNames
from .transfers import Prepared, Staged, Transfer
from .writer import PostgresWriter

Mode = Literal["insert", "upsert"]

_WHERE: Final = "write.postgres"
#: `pg_current_xact_id` and `pg_xact_status` of 64-bit numbers.
_OLDEST_VERSION = 130000


@dataclass
class PostgresSink:
    """Writes rows into a table, each once.

    Attributes:
        table: as SQL spells it.
        mode: "insert" adds rows; "upsert" replaces the row with the same `key`.
        retry_ns: for how long a writer tries when the server is away.
    """

    database: Database
    table: str
    mode: Mode
    key: tuple[str, ...]
    retry_ns: int
    _found: Table | None = field(default=None, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            hint = did_you_mean(str(self.mode), get_args(Mode))
            raise UserError(f"{_WHERE}: there is no mode={self.mode!r}; {hint}")
        if (self.mode == "upsert") != bool(self.key):
            raise UserError(
                f"{_WHERE}: mode='upsert' needs key=[...], the columns by which a row of the table"
                " is found, and mode='insert' has none"
            )

    @property
    def delivery(self) -> Delivery:
        """Rows appear with their checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Look the table up, and refuse what cannot work. Raises: UserError, AddressUnreachable."""
        connection = self.database.ask(_WHERE)
        try:
            self._found = self._checked(connection, schema)
        except (Refused, Unavailable) as error:
            raise UserError(f"{_WHERE}: table {self.table}: the server says: {error}") from None
        finally:
            connection.close()
        self._schema = schema

    def writer(self) -> PostgresWriter:
        """Make the writer of one subtask."""
        table, schema = self._found, self._schema
        assert table is not None, "check() comes first"
        assert schema is not None, "check() comes first"

        def transfer(names: WriterNames, count: int) -> Transfer:
            if self.mode == "insert":
                return Prepared(names.transaction(count), table.schema, table.name)
            columns = tuple(schema.names)
            return Staged(names.table(count), table.schema, table.name, columns)

        converter = Converter(table, schema)
        return PostgresWriter(self.database, converter, transfer, retry_ns=self.retry_ns)

    def committer(self, job: str, operator: str) -> Committer:
        """Make the committer of this sink, which is `operator` in `job`."""
        if self.mode == "insert":
            return PreparedCommitter(self.database, self.table, job=job, sink=operator)
        return StagedCommitter(self.database, self.table, self.key, job=job, sink=operator)

    def _checked(self, connection: Connection, schema: pa.Schema) -> Table:
        version = int(connection.value("SELECT current_setting('server_version_num')"))
        if version < _OLDEST_VERSION:
            raise UserError(
                f"{_WHERE}: the server is PostgreSQL {version // 10000}; 13 or newer is needed"
            )
        table = describe(connection, self.table)
        if table is None or table.kind not in ("r", "p"):
            what = "there is no table" if table is None else "only a table takes rows, not"
            raise UserError(
                f"{_WHERE}: {what} {self.table} in the database; create it, or check the"
                " spelling (schema.table, as in SQL)"
            )
        check_columns(table, schema, where=f"{_WHERE}: table {self.table}")
        if self.mode == "insert":
            _check_insert(connection, table, self.table)
        else:
            _check_upsert(connection, table, self.table, self.key, schema)
        return table


def _check_insert(connection: Connection, table: Table, shown: str) -> None:
    _check_rights(table, shown, ("insert",))
    limit = int(connection.value("SELECT current_setting('max_prepared_transactions')"))
    if limit == 0:
        raise UserError(
            f"{_WHERE}: the server keeps no prepared transactions (max_prepared_transactions is 0),"
            " which mode='insert' needs: set it to four for each writing subtask or more and"
            " restart the server, or use mode='upsert'"
        )


def _check_upsert(
    connection: Connection, table: Table, shown: str, key: tuple[str, ...], schema: pa.Schema
) -> None:
    for column in key:
        if column not in schema.names:
            hint = did_you_mean(column, schema.names)
            raise UserError(f"{_WHERE}: key={list(key)}: no column {column!r} is written; {hint}")
    if frozenset(key) not in table.keys:
        listed = ", ".join(map(identifier, key))
        raise UserError(
            f"{_WHERE}: table {shown} has no unique index on exactly {list(key)}, by which upsert"
            f" finds a row: CREATE UNIQUE INDEX ON {shown} ({listed})"
        )
    _check_rights(table, shown, ("insert", "update", "select"))
    if "create" not in table.rights:
        raise UserError(
            f"{_WHERE}: this user may not create tables in schema {table.schema}, where"
            f" mode='upsert' stages rows: GRANT CREATE ON SCHEMA {identifier(table.schema)}"
        )
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {identifier(table.schema)}.{identifier(COMMITS)}"
        " (run text PRIMARY KEY, job text, sink text, checkpoint bigint NOT NULL)"
    )


def _check_rights(table: Table, shown: str, needed: Sequence[str]) -> None:
    for right in needed:
        if right not in table.rights:
            raise UserError(
                f"{_WHERE}: this user may not {right.upper()} in table {shown}:"
                f" GRANT {right.upper()} ON {shown}"
            )
