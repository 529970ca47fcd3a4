"""Commits in the coordinator: prepared transactions one by one, staged rows in one transaction.

A repeated `COMMIT PREPARED` finds no transaction. The server remembers how each transaction ended
by its number, which the payload holds: committed is well, aborted is lost.

Staged rows of several subtasks and checkpoints are moved together with the token of the run: the
number of its newest checkpoint that is in the table, a row of `headrace_commits`. A repeated commit
finds the token. A staging table that is missing without the token is lost.

A recovery ends the sessions of earlier writers before it looks for what they have left. A writer
that was frozen meanwhile may still leave something: each commit sweeps behind epochs before the
recovery's.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...contract.errors import CommitLost, UserError
from ...contract.operators import Transaction
from ..tokens import by_run
from .connection import Connection, Database, Refused, identifier, literal
from .names import Names
from .sessions import end_sessions
from .transfers import ORDER

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Tokens of runs, beside the user's table.
COMMITS = "headrace_commits"

_UNDEFINED_OBJECT = "42704"
_INVALID_PARAMETER = "22023"
_UNDEFINED_TABLE = "42P01"


class Committer(ABC):
    """What both kinds share: the owner, and the order of a recovery."""

    def __init__(self, database: Database, table: str, *, job: str, sink: str) -> None:
        self._database = database
        #: As the user has spelled it.
        self._table = table
        self._names = Names(job, sink, "")
        self._connection: Connection | None = None
        #: Writers of epochs up to this one are over; None: of none.
        self._over: int | None = None

    def own(self, owner: str, *, anew: bool) -> None:
        """See `OwnsOutput`. Warn of what other owners have left."""
        self._names = Names(self._names.job, self._names.sink, owner)
        for left in self._served(self._left_by_others):
            _log.warning(
                "sink %r: %s is left of another run of job %r; if that run is over, %s",
                self._names.sink,
                left,
                self._names.job,
                self._removal(left),
            )

    def output(self) -> str:
        """See `OwnsOutput`. Rows of a table do not tell who wrote them."""
        return ""

    @abstractmethod
    def remove_output(self) -> None:
        """See `OwnsOutput`. Raises: UserError, where rows would be doubled."""

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Commit, and sweep behind writers that are over. Raises: CommitLost, HeadraceError."""
        over = self._over

        def commit(connection: Connection) -> None:
            self._commit(connection, transactions)
            if over is not None:
                self._sweep(connection, lambda epoch: epoch <= over)

        self._served(commit)

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """End earlier sessions, commit again, abort what else is open, of epochs up to `epoch`."""

        def is_over(of: int) -> bool:
            return epoch is None or of <= epoch

        def recover(connection: Connection) -> None:
            session = self._names.tables
            end_sessions(
                connection,
                lambda name: name.startswith(session) and is_over(self._names.epoch_of(name)),
            )
            self._commit(connection, committed)
            self._sweep(connection, is_over)

        self._served(recover)
        # The attempt that follows has the epoch itself.
        self._over = None if epoch is None else epoch - 1

    def _served(self, step: Callable[[Connection], _T]) -> _T:
        """Perform a step; after a failure the next one gets a new session."""
        connection = self._connection or self._database.connect()
        # A session costs the driver some queries of the catalog.
        self._connection = None
        try:
            answer = step(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return answer

    @abstractmethod
    def _commit(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        """Commit what is not committed."""

    @abstractmethod
    def _sweep(self, connection: Connection, is_over: Callable[[int], bool]) -> None:
        """Abort open transactions of this owner whose epoch `is_over`."""

    @abstractmethod
    def _left_by_others(self, connection: Connection) -> list[str]:
        """Open transactions of the sink's other owners."""

    @abstractmethod
    def _removal(self, left: str) -> str:
        """The statement that removes one of `_left_by_others`."""


class PreparedCommitter(Committer):
    """Commits prepared transactions."""

    def remove_output(self) -> None:
        """See `OwnsOutput`. Raises: UserError, when the table has rows."""
        query = f"SELECT EXISTS (SELECT FROM {self._table}) AS found"
        if self._served(lambda connection: connection.value(query)):
            raise UserError(
                f"sink {self._names.sink!r}: fresh=replace cannot tell which rows of table"
                f" {self._table} are this job's; delete them, and start again with fresh=append"
            )

    def _commit(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            try:
                connection.execute(f"COMMIT PREPARED {literal(transaction.id)}")
            except Refused as error:
                if error.sqlstate != _UNDEFINED_OBJECT:
                    raise
                self._check_committed(connection, transaction)

    def _check_committed(self, connection: Connection, transaction: Transaction) -> None:
        number = str(transaction.payload.get("xid", ""))
        try:
            status = connection.value(f"SELECT pg_xact_status({literal(number)}::xid8) AS status")
        except Refused as error:
            if error.sqlstate != _INVALID_PARAMETER:
                raise
            status = "unknown: the server has not come to it, so it is another one, or an old copy"
        if status == "committed":
            return
        if status == "in progress":
            raise Refused(f"transaction {transaction.id} is being ended by another session")
        story = {
            None: "it is so old that the server has forgotten how it ended",
            "aborted": "it was rolled back by somebody else",
        }.get(status, f"its state is {status}")
        raise CommitLost(
            f"prepared transaction {transaction.id!r} (number {number}) of sink"
            f" {self._names.sink!r} is not on the server: {story}"
        )

    def _sweep(self, connection: Connection, is_over: Callable[[int], bool]) -> None:
        for gid in _prepared(connection, self._names.transactions):
            if is_over(self._names.epoch_of(gid)):
                try:
                    connection.execute(f"ROLLBACK PREPARED {literal(gid)}")
                except Refused as error:
                    if error.sqlstate != _UNDEFINED_OBJECT:
                        raise

    def _left_by_others(self, connection: Connection) -> list[str]:
        own = self._names.transactions
        every = _prepared(connection, self._names.all_transactions)
        return [gid for gid in every if not gid.startswith(own)]

    def _removal(self, left: str) -> str:
        return f"ROLLBACK PREPARED {literal(left)}"


class StagedCommitter(Committer):
    """Moves rows of staging tables into the user's table.

    Args:
        key: columns by which a row of the table is found.
    """

    def __init__(
        self, database: Database, table: str, key: Sequence[str], *, job: str, sink: str
    ) -> None:
        super().__init__(database, table, job=job, sink=sink)
        self._key = tuple(key)

    def remove_output(self) -> None:
        """See `OwnsOutput`. Rows stay: the run that begins anew replaces them."""

    def _commit(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        if not transactions:
            return
        connection.execute("BEGIN")
        connection.execute("SET LOCAL synchronous_commit = on")
        # In one order, so that two drivers do not wait for each other.
        for run, group in sorted(by_run(transactions).items()):
            commits = _in_schema(group[0], COMMITS)
            token = self._token(connection, commits, run)
            new = [t for t in group if t.checkpoint > token]
            for transaction in new:
                self._move(connection, transaction)
            if new:
                connection.execute(
                    f"UPDATE {commits} SET checkpoint = {new[-1].checkpoint}"
                    f" WHERE run = {literal(run)}"
                )
        connection.execute("COMMIT")

    def _token(self, connection: Connection, commits: str, run: str) -> int:
        """The run's newest checkpoint in the table; locked, so that of two drivers one waits."""
        values = ", ".join(map(literal, (run, self._names.job, self._names.sink)))
        connection.execute(
            f"INSERT INTO {commits} (run, job, sink, checkpoint) VALUES ({values}, 0)"
            " ON CONFLICT (run) DO UPDATE SET checkpoint = headrace_commits.checkpoint"
        )
        query = f"SELECT checkpoint FROM {commits} WHERE run = {literal(run)}"
        return int(connection.value(query))

    def _move(self, connection: Connection, transaction: Transaction) -> None:
        """Upsert the staged rows; of rows with one key the last counts."""
        stage = _in_schema(transaction, transaction.id)
        try:
            columns = connection.table(f"SELECT * FROM {stage} LIMIT 0").schema.names
        except Refused as error:
            if error.sqlstate != _UNDEFINED_TABLE:
                raise
            raise CommitLost(
                f"staging table {transaction.id} of sink {self._names.sink!r} is not on the"
                f" server, and checkpoint {transaction.checkpoint} is not in {self._table}:"
                " somebody has dropped the table, or the server is another one"
            ) from None
        names = [identifier(name) for name in columns if name != ORDER]
        key = ", ".join(map(identifier, self._key))
        rest = [f"{name} = EXCLUDED.{name}" for name in names if name not in key.split(", ")]
        action = f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING"
        listed = ", ".join(names)
        connection.execute(
            f"INSERT INTO {self._table} ({listed})"
            f" SELECT DISTINCT ON ({key}) {listed} FROM {stage} ORDER BY {key}, {ORDER} DESC"
            f" ON CONFLICT ({key}) DO {action}"
        )
        connection.execute(f"DROP TABLE {stage}")

    def _sweep(self, connection: Connection, is_over: Callable[[int], bool]) -> None:
        for schema, name in _tables(connection, self._names.tables):
            if is_over(self._names.epoch_of(name)):
                connection.execute(f"DROP TABLE IF EXISTS {identifier(schema)}.{identifier(name)}")

    def _left_by_others(self, connection: Connection) -> list[str]:
        own = self._names.tables
        every = _tables(connection, self._names.all_tables)
        return [
            f"{identifier(schema)}.{identifier(name)}"
            for schema, name in every
            if not name.startswith(own)
        ]

    def _removal(self, left: str) -> str:
        return f"DROP TABLE {left}"


def _prepared(connection: Connection, beginning: str) -> list[str]:
    rows = connection.rows(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        f" AND starts_with(gid, {literal(beginning)}) ORDER BY gid"
    )
    return [row["gid"] for row in rows]


def _tables(connection: Connection, beginning: str) -> list[tuple[str, str]]:
    rows = connection.rows(
        "SELECT n.nspname::text AS schema, c.relname::text AS name FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'"
        f" AND starts_with(c.relname, {literal(beginning)}) ORDER BY 1, 2"
    )
    return [(row["schema"], row["name"]) for row in rows]


def _in_schema(transaction: Transaction, name: str) -> str:
    return f"{identifier(str(transaction.payload['schema']))}.{identifier(name)}"
