"""How a transaction's rows get to the server, up to the point where only the commit is missing.

*Prepared*: rows are copied into the table itself, and `PREPARE TRANSACTION` keeps them, invisible
and durable, until the coordinator's `COMMIT PREPARED`.

*Staged*: rows are copied into a table of their own, whose creation is committed; the coordinator
moves them into the user's table. Upserts go this way. A prepared upsert holds the locks of its
rows until the coordinator commits it, and the coordinator commits what complete checkpoints name.
So a subtask whose checkpoint was given up would wait in its next pre-commit for a row that only
the checkpoint after that pre-commit sets free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from .connection import Connection, identifier, literal

#: A prepared insert waits for a unique key that another transaction has written.
_LOCK_TIMEOUT = "30s"
#: Order of a staging table's rows.
ORDER = "__headrace_order"


class Transfer(Protocol):
    """One transaction of a writer, on whichever connection."""

    @property
    def id(self) -> str:
        """Id of the sink's transaction."""
        ...

    def begin(self, connection: Connection) -> None:
        """Begin the transaction."""
        ...

    def send(self, connection: Connection, rows: pa.Table) -> None:
        """Copy rows."""
        ...

    def seal(self, connection: Connection) -> None:
        """Make the rows durable, and still invisible."""
        ...

    def is_sealed(self, connection: Connection) -> bool:
        """Whether a `seal` without an answer has happened. No session of the writer lives."""
        ...

    def facts(self) -> dict[str, str | int]:
        """What the committer needs to know."""
        ...


@dataclass(slots=True)
class Prepared:
    """A prepared transaction, named `id` on the server."""

    id: str
    schema: str
    table: str
    _number: str = field(default="", init=False)

    def begin(self, connection: Connection) -> None:
        """See `Transfer`."""
        connection.execute("BEGIN")
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")

    def send(self, connection: Connection, rows: pa.Table) -> None:
        """See `Transfer`."""
        connection.ingest(self.schema, self.table, rows)

    def seal(self, connection: Connection) -> None:
        """See `Transfer`. The server's number of the transaction tells for ever how it ended."""
        self._number = connection.value("SELECT pg_current_xact_id()::text")
        connection.execute(f"PREPARE TRANSACTION {literal(self.id)}")

    def is_sealed(self, connection: Connection) -> bool:
        """See `Transfer`."""
        query = f"SELECT count(*) FROM pg_prepared_xacts WHERE gid = {literal(self.id)}"
        return bool(connection.value(query))

    def facts(self) -> dict[str, str | int]:
        """See `Transfer`."""
        return {"xid": self._number}


@dataclass(slots=True)
class Staged:
    """A staging table, named `id`, in the schema of the user's table."""

    id: str
    schema: str
    table: str
    columns: tuple[str, ...]

    def begin(self, connection: Connection) -> None:
        """See `Transfer`. An identity column numbers the rows in the order of their arrival."""
        columns = ", ".join(map(identifier, self.columns))
        target = f"{identifier(self.schema)}.{identifier(self.table)}"
        connection.execute("BEGIN")
        connection.execute(
            f"CREATE TABLE {self._place} AS SELECT {columns} FROM {target} WITH NO DATA"
        )
        connection.execute(
            f"ALTER TABLE {self._place} ADD COLUMN {ORDER} bigint GENERATED ALWAYS AS IDENTITY"
        )

    def send(self, connection: Connection, rows: pa.Table) -> None:
        """See `Transfer`."""
        connection.ingest(self.schema, self.id, rows)

    def seal(self, connection: Connection) -> None:
        """See `Transfer`. A role or database may be set to lose its last commits in a crash."""
        connection.execute("SET LOCAL synchronous_commit = on")
        connection.execute("COMMIT")

    def is_sealed(self, connection: Connection) -> bool:
        """See `Transfer`."""
        found = connection.value(f"SELECT to_regclass({literal(self._place)}) IS NOT NULL")
        return bool(found)

    def facts(self) -> dict[str, str | int]:
        """See `Transfer`."""
        return {"schema": self.schema}

    @property
    def _place(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.id)}"
