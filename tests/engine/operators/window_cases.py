"""What the tests of windows and joins share: operators driven like the runtime drives them,
through random histories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK
from headrace.channels.keygroups import key_group_range, key_groups, owners
from headrace.engine.contract.operators import (
    EventTimeOperator,
    KeepsDatabase,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateKind,
)

from .rocks_cases import MAX_PARALLELISM, all_stored, context, frozen, tables

#: By parallelism and index, the state of a subtask: tables and databases.
Checkpoint = tuple[
    list[tuple[str, StateKind, pa.Table]], list[Callable[[int, int], RestoredDatabase]]
]


class Subtasks:
    """The subtasks of one operator; every input is a hash edge on its key. With a `folder` their
    state lies in databases below it.

    A snapshot between a call and its commit must equal the one before the call. An operator that
    cannot emit less than some rows at once may emit so many where it was asked for fewer
    (`rows_least`).
    """

    def __init__(
        self,
        make: Callable[[], EventTimeOperator],
        keys: Sequence[Sequence[str]],
        parallelism: int,
        folder: Path | None = None,
        *,
        rows_least: int = 0,
    ) -> None:
        self._make = make
        self._rows_least = rows_least
        self._keys = keys
        self._folder = folder
        self._kind = "heap" if folder is None else "rocksdb"
        self.watermark = MIN_WATERMARK
        self.emitted: list[dict[str, Any]] = []
        self.late: list[dict[str, Any]] = []
        self._operators: list[EventTimeOperator] = []
        self._start(parallelism, None)

    def process(self, batch: pa.RecordBatch, port: int = 0) -> None:
        groups = key_groups(batch, self._keys[port], MAX_PARALLELISM)
        targets = owners(MAX_PARALLELISM, len(self._operators))[groups]
        for index, operator in enumerate(self._operators):
            part = batch.filter(pa.array(targets == index))
            if part.num_rows:
                before = tables_of(operator)
                self._collect(operator.process(part, port))
                assert tables_of(operator) == before, "a snapshot sees what is not committed"
                self._ended(operator)

    def advance(self, watermark_ns: int, rows_max: int = 3) -> None:
        self.watermark = max(self.watermark, watermark_ns)
        for operator in self._operators:
            self._advance(operator, rows_max)

    def rescale(self, parallelism: int, kind: str | None = None) -> None:
        """Snapshot all, begin anew with `parallelism` subtasks, perhaps on another backend."""
        states = [(s.name, s.kind, s.table()) for o in self._operators for s in o.snapshot()]
        databases = []
        if self._kind == "rocksdb":
            assert self._folder is not None
            databases = [d for o in self._operators for d in all_stored(frozen(o), self._folder)]
        self.close()
        self._kind = kind or self._kind
        self._start(parallelism, (states, databases))

    def close(self) -> None:
        for operator in self._operators:
            operator.close()

    def advance_half(self, watermark_ns: int) -> None:
        """Fire one row at most per subtask, as if a checkpoint came before the rest; rescale
        next.
        """
        self.watermark = max(self.watermark, watermark_ns)
        for operator in self._operators:
            self._collect(operator.advance(self.watermark, 1).batches)
            operator.commit()

    def _start(self, parallelism: int, checkpoint: Checkpoint | None) -> None:
        self._operators = [self._make() for _ in range(parallelism)]
        for index, operator in enumerate(self._operators):
            where = OperatorContext("job", "o", index, parallelism, MAX_PARALLELISM, 0)
            if self._folder is not None:
                where = context(self._folder, self._kind, index=index, parallelism=parallelism)
            operator.open(where)
            if checkpoint is not None:
                self._restore(operator, index, parallelism, checkpoint)
                self._advance(operator, 2)

    def _restore(
        self, operator: EventTimeOperator, index: int, parallelism: int, checkpoint: Checkpoint
    ) -> None:
        states, stored_databases = checkpoint
        tables = list(_owned(states, index, parallelism))
        owned = key_group_range(MAX_PARALLELISM, parallelism, index)
        databases = [restorable(parallelism, index) for restorable in stored_databases]
        databases = [d for d in databases if set(d.groups) & set(owned)]
        if databases:
            assert isinstance(operator, KeepsDatabase)
            if not operator.restore_databases(databases):
                tables += [table for database in databases for table in database.tables()]
        operator.restore(tables)

    def _advance(self, operator: EventTimeOperator, rows_max: int) -> None:
        done = False
        while not done:
            before = tables_of(operator)
            advanced = operator.advance(self.watermark, rows_max)
            assert tables_of(operator) == before, "a snapshot sees what is not committed"
            assert sum(b.num_rows for b in advanced.batches) <= max(rows_max, self._rows_least)
            self._collect(advanced.batches)
            done = advanced.done
            self._ended(operator)

    def _collect(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.emitted += [row for batch in batches for row in batch.to_pylist()]

    def _ended(self, operator: Any) -> None:
        taken: Sequence[pa.RecordBatch] = getattr(operator, "take_late", tuple)()
        self.late += [row for batch in taken for row in batch.to_pylist()]
        operator.commit()


def tables_of(operator: EventTimeOperator) -> dict[str, pa.Table]:
    held = {state.name: state.table() for state in operator.snapshot()}
    database = operator.freeze_database() if isinstance(operator, KeepsDatabase) else None
    return held if database is None else held | tables(database)


def _owned(
    states: Sequence[tuple[str, StateKind, pa.Table]], index: int, parallelism: int
) -> Iterable[RestoredState]:
    owned = key_group_range(MAX_PARALLELISM, parallelism, index)
    for name, kind, table in states:
        assert kind is StateKind.KEYED
        groups = table["__key_group"].to_numpy()
        start, end = np.searchsorted(groups, [owned.start, owned.stop])
        yield RestoredState(name, kind, table.slice(start, end - start))
