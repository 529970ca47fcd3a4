"""Connections to PostgreSQL: statements, Arrow tables in and out, and errors of three kinds.

ADBC carries all of it: rows go in and out as binary COPY without a Python object a value, and the
driver brings its own libpq. `autocommit` is on, so a transaction begins with our own `BEGIN`, and
`PREPARE TRANSACTION` ends it.

Not here: `psycopg`, whose COPY needs rows as text or as tuples.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pyarrow as pa

from ...contract.errors import AddressUnreachable, HeadraceError, UserError
from ...contract.places import redacted

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
#: SQLSTATEs of statements that may succeed on a later try: lost connections (08), a server that
#: stops or starts (57P), too few slots or locks (53, 55P03), deadlocks and serialisation (40).
_PASSING = re.compile("08...|57P0[1235]|53...|55P03|40...")
_SERVER_SAYS = re.compile(r"(?:ERROR|FATAL|PANIC): +(.*)")
#: libpq's faults of a URL, which quote it, its password too.
_FAULTS_OF_URLS = re.compile(r"connection info string|\bURI\b|connection option")
_UNREADABLE = (
    "the address is neither a URL (postgresql://host:5432/database) nor pairs (host=... dbname=...)"
)
#: A host that vanished, or a server that hangs as it connects, is given up in about a minute.
_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


class Refused(HeadraceError):
    """The server refused a statement.

    Attributes:
        sqlstate: five characters of PostgreSQL's appendix A.
    """

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(message, sqlstate)
        self.message = str(self.args[0])
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        return self.message


class Unavailable(HeadraceError):
    """The connection is lost, or the server cannot serve the statement now."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where a database is: libpq's URL or key-value string."""

    url: str = field(repr=False)

    def connect(self, name: str = "headrace") -> Connection:
        """Open a connection that other sessions see as `name`.

        Raises: Unavailable, UserError without the driver.
        """
        adbc = driver()
        with _translated(adbc):
            raw = adbc.connect(_with_timeouts(self.url), autocommit=True)
        connection = Connection(adbc, raw)
        connection.execute(f"SET application_name = {literal(name)}")
        return connection

    def ask(self, where: str) -> Connection:
        """Open a connection before a job runs.

        Args:
            where: begins the sentence: "write.postgres".

        Raises: UserError, AddressUnreachable.
        """
        if "://" in self.url and not self.url.startswith(("postgresql://", "postgres://")):
            raise UserError(
                f"{where}: url={redacted(self.url)!r} is no URL of PostgreSQL, which begins with"
                " postgresql://"
            )
        try:
            return self.connect()
        except Unavailable as error:
            reason = str(error)
            if "FATAL" in reason or reason == _UNREADABLE:
                raise UserError(f"{where}: {_plain(reason)}; check url=") from None
            raise AddressUnreachable(f"{where}: the server does not answer: {reason}") from None


class Connection:
    """One session, for one thread at a time. It ends with this object, if not before."""

    def __init__(self, adbc: ModuleType, raw: Any) -> None:
        self._adbc = adbc
        self._cursor = raw.cursor()
        self._end = weakref.finalize(self, _close, self._cursor, raw)

    def execute(self, statement: str) -> None:
        """Run a statement without rows. Raises: Refused, Unavailable."""
        with _translated(self._adbc):
            self._cursor.execute(statement)

    def table(self, query: str) -> pa.Table:
        """Run a query. Raises: Refused, Unavailable."""
        with _translated(self._adbc):
            self._cursor.execute(query)
            return self._cursor.fetch_arrow_table()

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Run a query with a small answer. Raises: Refused, Unavailable."""
        rows: list[dict[str, Any]] = self.table(query).to_pylist()
        return rows

    def value(self, query: str) -> Any:
        """Run a query with one value."""
        (row,) = self.rows(query)
        (value,) = row.values()
        return value

    def ingest(self, schema: str, table: str, data: pa.Table) -> None:
        """Append rows by COPY; columns are found by name, in the open transaction if there is one.

        Raises: Refused, Unavailable.
        """
        with _translated(self._adbc):
            self._cursor.adbc_ingest(table, data, mode="append", db_schema_name=schema)

    def close(self) -> None:
        """End the session; an open transaction is rolled back."""
        self._end()


def _close(*parts: Any) -> None:
    """Close parts of a session, whatever state it is in."""
    for part in parts:
        with suppress(Exception):
            part.close()


class Patience:
    """Waits between tries, which double, until the time is over."""

    def __init__(
        self,
        limit_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit_ns = limit_ns
        self._clock = clock
        self._sleep = sleep
        self._since_ns: int | None = None
        self._wait_s = _FIRST_WAIT_S

    def wait(self) -> bool:
        """Sleep before the next try; False: no time is left."""
        now_ns = self._clock()
        if self._since_ns is None:
            self._since_ns = now_ns
        if now_ns - self._since_ns >= self._limit_ns:
            return False
        self._sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        return True


def driver() -> ModuleType:
    """Import the driver. Raises: UserError, when it is not installed."""
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise UserError(
            "PostgreSQL needs a driver that is not installed: pip install 'headrace[postgres]'"
        ) from None
    module: ModuleType = dbapi
    return module


def literal(value: str) -> str:
    """Return `value` as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return `name` as an identifier of SQL, letter by letter."""
    return '"' + name.replace('"', '""') + '"'


def _with_timeouts(url: str) -> str:
    """Add the timeouts that the user does not state."""
    stated = [f"{name}={value}" for name, value in _TIMEOUTS.items() if name not in url]
    if "://" not in url:
        return " ".join([url, *stated])
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(stated)}"


@contextmanager
def _translated(adbc: ModuleType) -> Iterator[None]:
    try:
        yield
    except adbc.Error as error:
        sqlstate = str(error.sqlstate or "")
        text = str(error)
        if not sqlstate and isinstance(error, adbc.OperationalError):
            raise Unavailable(_connection_story(text)) from None
        if _PASSING.fullmatch(sqlstate):
            raise Unavailable(_plain(text)) from None
        raise Refused(_plain(text), sqlstate) from None


def _plain(text: str) -> str:
    """The server's own sentence in an error of the driver."""
    said = _SERVER_SAYS.search(text)
    return said[1].strip() if said else text.splitlines()[0].strip()


def _connection_story(text: str) -> str:
    if _FAULTS_OF_URLS.search(text):
        return _UNREADABLE
    line = text.split("[libpq] ", 1)[-1].splitlines()[0]
    return line.removeprefix("Failed to connect: ").strip()
