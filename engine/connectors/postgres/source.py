"""The source: a table or query, looked up and planned as the pipeline is built."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyarrow import types

from ...contract.errors import UserError
from ...contract.operators import SourceReader
from ...contract.suggestion import did_you_mean
from .columns import Table, describe
from .connection import Connection, Database, Refused, Unavailable, identifier
from .horizon import ANY_WRITER, writers_of
from .pages import PAGE_ROWS, Ordered, place
from .reader import GrowingReader, Split, TableReader

_WHERE: Final = "read.postgres"
_QUERY = re.compile(r"\s*(select|with|values)\b", re.IGNORECASE)
_SPLIT_VALUES = 4 * PAGE_ROWS
_SPLITS_MAX = 256
_SPLIT_BLOCKS = 1024
#: Of types that arrive as they are; all others are read as text.
_PLAIN = (
    types.is_boolean,
    types.is_integer,
    types.is_floating,
    types.is_string,
    types.is_binary,
    types.is_date,
    types.is_time,
    types.is_timestamp,
)
#: {type on the server: type in SQL} of columns that give an order.
_ORDERS = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "text": "text",
    "varchar": "text",
}
_NUMBERS = ("smallint", "integer", "bigint")


@dataclass
class PostgresSource:
    """Reads a table or query.

    Attributes:
        table: as SQL spells it, or a query.
        column: whose order rows are read in; None: places in the table.
        follow_ns: None: the rows that are there; otherwise how often to look for more.
        retry_ns: for how long a reader tries when the server is away.
    """

    database: Database
    table: str
    column: str | None
    follow_ns: int | None
    retry_ns: int
    _ordered: Ordered = field(init=False)
    _splits: tuple[Split, ...] = field(default=(), init=False)
    _writers: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.follow_ns is not None and self.column is None:
            raise UserError(
                f"{_WHERE}: follow= needs column=, whose values grow, such as column='id'"
            )
        connection = self.database.ask(_WHERE)
        try:
            self._look(connection)
        except (Refused, Unavailable) as error:
            raise UserError(f"{_WHERE}: {self.table}: the server says: {error}") from None
        finally:
            connection.close()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table or query."""
        return self._ordered.schema

    def reader(self) -> SourceReader:
        """Make the reader of one subtask."""
        if self.follow_ns is None:
            return TableReader(self.database, self._ordered, self._splits, retry_ns=self.retry_ns)
        return GrowingReader(
            self.database,
            self._ordered,
            self._writers,
            every_ns=self.follow_ns,
            retry_ns=self.retry_ns,
        )

    def _look(self, connection: Connection) -> None:
        is_query = bool(_QUERY.match(self.table))
        table = None if is_query else _found(connection, self.table)
        relation = f"({self.table.rstrip().rstrip(';')}) AS headrace_query"
        self._ordered = self._order(connection, self.table if table else relation)
        if self.column is not None:
            self._check_nulls(connection, table)
        elif table is None or table.kind not in ("r", "m"):
            raise UserError(
                f"{_WHERE}: {'a query' if table is None else self.table} needs column=, whose order"
                " tells a restart where to go on; only a plain table is read without"
            )
        if self.follow_ns is None:
            self._splits = _plan(connection, self._ordered, table)
        else:
            self._writers = self._growth(connection, table)

    def _order(self, connection: Connection, relation: str) -> Ordered:
        found = connection.table(f"SELECT * FROM {relation} LIMIT 0").schema
        for name in found.names:
            if found.names.count(name) > 1:
                raise UserError(f"{_WHERE}: several columns are called {name!r}; name them with AS")
        if self.column is None:
            kind = ""
        else:
            if self.column not in found.names:
                hint = did_you_mean(self.column, found.names)
                raise UserError(f"{_WHERE}: there is no column {self.column!r}; {hint}")
            on_server = _type_name(found.field(self.column))
            if on_server not in _ORDERS:
                raise UserError(
                    f"{_WHERE}: column={self.column!r} is {on_server}; rows are read in the order"
                    f" of {', '.join(_ORDERS)}"
                )
            kind = _ORDERS[on_server]
        selected = tuple(
            identifier(f.name) if _is_plain(f.type) else f"{identifier(f.name)}::text"
            for f in found
        )
        schema = pa.schema([pa.field(f.name, _plain(f)) for f in found])
        return Ordered(relation, self.column or "", kind, selected, schema)

    def _check_nulls(self, connection: Connection, table: Table | None) -> None:
        """Refuse an order in which some rows have no place."""
        column = identifier(self.column or "")
        if table is not None and self.column in table.not_null:
            return
        relation = self._ordered.relation
        nulls = connection.value(
            f"SELECT EXISTS (SELECT FROM {relation} WHERE {column} IS NULL) AS found"
        )
        if nulls or self.follow_ns is not None:
            raise UserError(
                f"{_WHERE}: column={self.column!r} may be NULL, and such rows have no place in its"
                " order; choose a column that is NOT NULL"
            )

    def _growth(self, connection: Connection, table: Table | None) -> str:
        """Return the query of transactions that new rows wait for."""
        if table is None or table.kind not in ("r", "p"):
            raise UserError(
                f"{_WHERE}: follow= reads a table, since rows of a query or view do not tell which"
                " open transactions may still add some"
            )
        if connection.value("SELECT pg_is_in_recovery()"):
            raise UserError(
                f"{_WHERE}: the server is a standby, which does not know the open transactions of"
                " its primary; follow= reads from the primary"
            )
        if self._ordered.type in ("timestamp", "timestamptz"):
            return ANY_WRITER
        if self._ordered.type not in _NUMBERS:
            raise UserError(
                f"{_WHERE}: follow= reads in the order of numbers of a sequence, or of times of"
                f" now(), and {self.column!r} is {self._ordered.type}"
            )
        cache = connection.value(_CACHE.format(oid=table.oid))
        if cache is not None and int(cache) > 1:
            raise UserError(
                f"{_WHERE}: a sequence of {self.table} has CACHE {cache}, so sessions draw numbers"
                " ahead and use them much later: ALTER SEQUENCE ... CACHE 1"
            )
        return writers_of(table.oid)


def _found(connection: Connection, name: str) -> Table:
    table = describe(connection, name)
    if table is None:
        raise UserError(
            f"{_WHERE}: there is no table {name} in the database; check the spelling"
            " (schema.table, as in SQL), or write a query that begins with SELECT"
        )
    return table


def _plan(connection: Connection, ordered: Ordered, table: Table | None) -> tuple[Split, ...]:
    """Cut what is there now into ranges."""
    if not ordered.column:
        assert table is not None, "only a table has places"
        size = (
            f"SELECT pg_relation_size({table.oid}) / current_setting('block_size')::int8 AS blocks"
        )
        blocks = int(connection.value(size))
        starts = range(0, blocks, _SPLIT_BLOCKS)
        ends = [min(start + _SPLIT_BLOCKS, blocks) for start in starts]
        return tuple(
            Split(n, place(start), str(int(place(end)) - 1))
            for n, (start, end) in enumerate(zip(starts, ends, strict=True))
        )
    first, last = ordered.ends(connection)
    if first is None or last is None:
        return ()
    if ordered.type not in _NUMBERS:
        return (Split(0, None, last),)
    low, span = int(first), int(last) - int(first) + 1
    count = max(1, min(span // _SPLIT_VALUES, _SPLITS_MAX))
    bounds = [str(low + span * n // count - 1) for n in range(count + 1)]
    return tuple(Split(n, bounds[n], bounds[n + 1]) for n in range(count))


def _is_plain(type_: pa.DataType) -> bool:
    if types.is_list(type_):
        return _is_plain(type_.value_type)
    return any(is_kind(type_) for is_kind in _PLAIN)


def _plain(found: pa.Field) -> pa.DataType:
    if types.is_list(found.type) and _is_plain(found.type):
        return pa.list_(found.type.value_type)
    if _is_plain(found.type):
        return found.type
    return _decimal(found) or pa.string()


def _decimal(found: pa.Field) -> pa.DataType | None:
    """The type of a `numeric` with stated digits, up to 38."""
    stated = int(_about(found, "typmod") or 0) - 4
    if _type_name(found) != "numeric" or stated < 0:
        return None
    precision, scale = stated >> 16, stated & 0x7FF
    return pa.decimal128(precision, scale) if scale <= precision <= 38 else None


def _type_name(found: pa.Field) -> str:
    return _about(found, "type")


def _about(found: pa.Field, what: str) -> str:
    """What the driver tells of a column."""
    told = (found.metadata or {}).get(f"POSTGRESQL:{what}".encode(), b"")
    return str(told.decode()).strip("'")


_CACHE = """
SELECT max(s.seqcache) AS cache FROM pg_sequence s WHERE s.seqrelid IN (
    SELECT d.objid FROM pg_depend d WHERE d.refobjid = {oid} AND d.classid = 'pg_class'::regclass
    UNION
    SELECT d.refobjid FROM pg_attrdef a JOIN pg_depend d ON d.objid = a.oid
    WHERE a.adrelid = {oid} AND d.classid = 'pg_attrdef'::regclass
)
"""
