"""Up to which value of a growing column a table is settled: no row will appear behind it any more.

Numbers of a sequence are drawn before they are committed. Transaction A draws 4, B draws 5 and
commits; a reader that sees 5 and goes on behind it never sees 4. So a reader that has seen the
greatest value waits for each transaction that was open then and could hold a lesser one, and only
then reads up to that value:

- Numbers: a transaction that has drawn one, or inserted one, holds a lock of the sequence or the
  table until it ends, prepared transactions too. Later ones draw greater numbers.
- Times (`DEFAULT now()`): a transaction's time is that of its beginning, when it holds no lock of
  the table. So every transaction of the database counts.

Rejected: comparing each row's `xmin` with the oldest open transaction. A transaction gets its
number after it has drawn from the sequence, so the row with the lesser value may have the greater
`xmin`. And a time lag, which is a guess.
"""

from __future__ import annotations

from .connection import Connection
from .pages import Ordered


class Horizon:
    """How far the table is settled. Belongs to one reader.

    Args:
        writers: the query of open transactions that count.
    """

    def __init__(self, ordered: Ordered, writers: str) -> None:
        self._ordered = ordered
        self._writers = writers
        self._target: str | None = None
        self._waiting: set[str] = set()

    def settled(self, connection: Connection, after: str | None) -> str | None:
        """A value behind `after` up to which all rows are visible; None: there is none yet.

        Ask again, on any connection: statements must not share a transaction. Raises: Refused,
        Unavailable.
        """
        if self._target is None:
            self._target = self._ordered.newest(connection, after)
            if self._target is None:
                return None
            # After the look at the table: a transaction that ended in between is visible.
            self._waiting = self._open(connection)
        elif self._waiting:
            self._waiting &= self._open(connection)
        if self._waiting:
            return None
        target, self._target = self._target, None
        return target

    @property
    def waits(self) -> bool:
        """Rows are there, and wait for a transaction."""
        return self._target is not None

    def _open(self, connection: Connection) -> set[str]:
        return {row["transaction"] for row in connection.rows(self._writers)}


def writers_of(oid: int) -> str:
    """The query of transactions that may have drawn a number for the table, its parts included."""
    return _OF_TABLE.format(oid=oid)


_OF_TABLE = """
WITH RECURSIVE parts(oid) AS (
    SELECT {oid}::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN parts p ON i.inhparent = p.oid
), sequences(oid) AS (
    SELECT d.objid FROM pg_depend d JOIN parts p ON d.refobjid = p.oid
    JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' AND d.classid = 'pg_class'::regclass
    UNION
    SELECT d.refobjid FROM pg_attrdef a JOIN parts p ON a.adrelid = p.oid
    JOIN pg_depend d ON d.objid = a.oid AND d.classid = 'pg_attrdef'::regclass
    JOIN pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
)
SELECT DISTINCT virtualtransaction AS transaction FROM pg_locks
WHERE locktype = 'relation' AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation IN (SELECT oid FROM parts UNION SELECT oid FROM sequences)
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""

#: Of sessions of other databases too where this role may not see which those are.
ANY_WRITER = """
SELECT DISTINCT l.virtualtransaction AS transaction FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.pid IS DISTINCT FROM pg_backend_pid()
  AND coalesce(a.datname, current_database()) = current_database()
  AND (l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock'
       OR l.locktype = 'transactionid' AND l.pid IS NULL)
"""
