"""Operators on RocksDB for tests: where they keep their files, and what a checkpoint of them
would hold.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace.channels.keygroups import key_group_range
from headrace.engine.contract.operators import (
    DatabaseSnapshot,
    KeepsDatabase,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
)
from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.state.rocks.backend import open_backend
from headrace.engine.state.rocks.tables import tables_of

MAX_PARALLELISM = 16
SMALL = rocks_files.RocksSizes(1 << 20, 1 << 20)

_NUMBERS = itertools.count()


#: (parallelism, index) to a database as that subtask is given it.
Restorable = Callable[[int, int], RestoredDatabase]


def context(
    folder: Path, kind: str = "rocksdb", *, index: int = 0, parallelism: int = 1
) -> OperatorContext:
    """Where an instance runs whose databases lie below `folder`."""

    def new() -> str:
        return str(folder / f"database-{next(_NUMBERS)}")

    databases = partial(open_backend, folder=new)
    backend = StateBackend(kind, SMALL.write_buffer_bytes, SMALL.block_cache_bytes, databases)
    return OperatorContext("job", "totals", index, parallelism, MAX_PARALLELISM, 1, backend)


def frozen(operator: object) -> DatabaseSnapshot:
    """The operator's database as a checkpoint would freeze it."""
    assert isinstance(operator, KeepsDatabase)
    snapshot = operator.freeze_database()
    assert snapshot is not None
    return snapshot


def tables(snapshot: DatabaseSnapshot) -> dict[str, pa.Table]:
    """{state: its table} of a frozen database and the others that were frozen with it; all are
    released.
    """
    found: dict[str, list[pa.Table]] = {}
    for part in (snapshot, *snapshot.others):
        database = rocks_files.open_database(part.files().folder, SMALL, read_only=True)
        entries = rocks_files.scan(database, part.groups)
        for state in tables_of(part.layouts, entries, MAX_PARALLELISM):
            found.setdefault(state.name, []).append(state.table)
        database.close()
    snapshot.release()
    return {name: pa.concat_tables(parts) for name, parts in found.items()}


def stored(snapshot: DatabaseSnapshot, folder: Path) -> Restorable:
    """See `all_stored`: of an operator with one database."""
    (only,) = all_stored(snapshot, folder)
    return only


def all_stored(snapshot: DatabaseSnapshot, folder: Path) -> list[Restorable]:
    """Copy frozen databases, as a checkpoint would, and release them; make each restorable by
    (parallelism, index).
    """
    kept = [_copied(part, folder) for part in (snapshot, *snapshot.others)]
    snapshot.release()
    return kept


def _copied(snapshot: DatabaseSnapshot, folder: Path) -> Restorable:
    files = snapshot.files()
    kept = folder / f"stored-{next(_NUMBERS)}"
    kept.mkdir()
    for name in (*files.immutable, *files.other):
        shutil.copyfile(Path(files.folder) / name, kept / name)

    def fetch(target: str) -> None:
        for path in kept.iterdir():
            shutil.copyfile(path, Path(target) / path.name)

    def restored(parallelism: int, index: int) -> RestoredDatabase:
        groups = key_group_range(MAX_PARALLELISM, parallelism, index)
        copy = folder / f"read-{next(_NUMBERS)}"
        shutil.copytree(kept, copy)

        def states() -> Sequence[RestoredState]:
            database = rocks_files.open_database(str(copy), SMALL, read_only=True)
            held = range(
                max(groups.start, snapshot.groups.start), min(groups.stop, snapshot.groups.stop)
            )
            return tables_of(snapshot.layouts, rocks_files.scan(database, held), MAX_PARALLELISM)

        size = sum(path.stat().st_size for path in kept.iterdir())
        return RestoredDatabase(snapshot.groups, snapshot.layouts, size, {}, fetch, states)

    return restored
