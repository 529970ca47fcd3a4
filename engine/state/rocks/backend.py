"""Keyed state of one operator in one RocksDB database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.channels.keygroups import key_group_range

from ...contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateLayout,
    StateSnapshot,
)
from ..backend import DueRowsAtHand, KeptRowsAtHand
from ..types import Cell, Key
from .database import RocksDatabase
from .files import RocksSizes
from .kept import RocksTable
from .keyed import RocksKeyed
from .records import Numbers, RocksRecords
from .table import RocksDueTable


class RocksBackend:
    """See `KeyedBackend`.

    Args:
        cache_bytes: see `StateBackend`.
    """

    def __init__(self, database: RocksDatabase, max_parallelism: int, cache_bytes: int = 0) -> None:
        self._database = database
        self._max_parallelism = max_parallelism
        self._cache_bytes = cache_bytes
        self._values: list[RocksKeyed] = []
        self._tables: list[RocksTable | RocksDueTable | RocksRecords] = []
        #: Of records, if there are tables of records.
        self._numbers: Numbers | None = None

    def values(
        self,
        name: str,
        keys: Sequence[pa.Field],
        type_: pa.DataType,
        from_arrow: Callable[[Cell], Cell],
    ) -> RocksKeyed:
        """See `KeyedBackend`."""
        values = RocksKeyed(self._database, name, keys, type_, from_arrow, self._max_parallelism)
        self._values.append(values)
        return values

    def rows(self, at_hand: KeptRowsAtHand) -> RocksTable:
        """See `KeyedBackend`."""
        table = RocksTable(self._database, at_hand, self._max_parallelism, self._cache_bytes)
        self._tables.append(table)
        return table

    def due_rows(self, at_hand: DueRowsAtHand) -> RocksDueTable:
        """See `KeyedBackend`."""
        table = RocksDueTable(self._database, at_hand, self._max_parallelism)
        self._tables.append(table)
        return table

    def records(
        self,
        name: str,
        schema: pa.Schema,
        keys: Sequence[str],
        kept_ns: int | None,
        *,
        unmatched: bool,
    ) -> RocksRecords:
        """See `KeyedBackend`."""
        if self._numbers is None:
            self._numbers = Numbers(self._database.groups)
        table = RocksRecords(
            self._database, name, schema, keys, kept_ns, self._numbers, self._max_parallelism
        )
        self._tables.append(table)
        return table

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Take over databases with exactly the program's states.

        Otherwise the operator checks and restores their tables, as for any backend.
        """
        layouts = {layout.name: layout for layout in self._database.layouts}
        for found in (layout for database in databases for layout in database.layouts):
            if not _is(layouts.get(found.name), found):
                return False
        self._database.restore(databases)
        return True

    def restore_own(self, states: Iterable[RestoredState]) -> None:
        """Go on above the numbers of restored records."""
        if self._numbers is not None:
            self._numbers.restore(states)

    def begin(self) -> None:
        """Apply the layers of earlier calls, and forget rows at hand."""
        if not any(table.is_written for table in self._tables):
            self._database.settle()
        for table in self._tables:
            table.begin()

    def prefetch(self, keys: Iterable[Key]) -> None:
        """See `KeyedBackend`."""
        wanted = list(keys)
        for values in self._values:
            values.prefetch(wanted)

    def commit(self) -> None:
        """Make a layer of the call's writes."""
        for table in self._tables:
            table.stage()
        self._database.commit()
        for values in self._values:
            values.forget()

    def snapshot(self) -> list[StateSnapshot]:
        """Every table is in the database; the numbers of records are not."""
        return [] if self._numbers is None else [self._numbers.snapshot()]

    def freeze_database(self) -> DatabaseSnapshot:
        """See `KeyedBackend`."""
        return self._database.snapshot()

    def close(self) -> None:
        """See `KeyedBackend`."""
        self._database.close()


def _is(wanted: StateLayout | None, found: StateLayout) -> bool:
    return wanted is not None and found.keys == wanted.keys and found.schema.equals(wanted.schema)


def open_backend(
    stated: StateBackend,
    context: OperatorContext,
    *,
    folder: Callable[[], str],
    engine: Any = None,
) -> RocksBackend:
    """Make an operator's backend; the folder of its database appears at the first use.

    Args:
        folder: names a folder for one database, which does not exist; its parent does.
        engine: opens and copies databases, as `files.py` does; None: `files.py`. The simulation has
            an engine of its own.
    """
    groups = key_group_range(context.max_parallelism, context.parallelism, context.index)
    sizes = RocksSizes(stated.write_buffer_bytes, stated.block_cache_bytes)
    name = f"{context.operator}/{context.index}"
    database = RocksDatabase(folder(), name, groups, sizes, engine=engine)
    return RocksBackend(database, context.max_parallelism, stated.cache_bytes)
