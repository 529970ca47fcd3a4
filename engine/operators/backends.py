"""Where an operator's keyed state lies: one backend for each operator of each subtask.

A backend gives every state its place for committed values, knows when a call begins and when one is committed, and freezes
what the states do not freeze themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.channels.keygroups import key_group_range

from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    StateBackend,
    StateKind,
    StateLayout,
    StateSnapshot,
)
from ..state.committed import Key
from ..state.keyed import CurrentKey, KeyedState

if TYPE_CHECKING:
    from ..state.rocks.database import RocksDatabase
    from ..state.rocks.keyed import RocksKeyed


class KeyedBackend(Protocol):
    """The declared states of one operator."""

    def bind(self, declared: KeyedState, name: str, current: CurrentKey) -> KeyedState:
        """Make the state that holds data. Subtask thread, when the operator opens."""
        ...

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Begin with these; False: their tables are wanted instead. Subtask thread."""
        ...

    def begin(self) -> None:
        """A call begins. Subtask thread."""
        ...

    def prefetch(self, keys: Iterable[Key]) -> None:
        """These keys are about to be read. Subtask thread."""
        ...

    def commit(self) -> None:
        """Publish what the states were given to merge. Owner thread."""
        ...

    def snapshot(self) -> list[StateSnapshot]:
        """Freeze what is committed on the heap. Owner thread."""
        ...

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze what is committed in a database. Owner thread."""
        ...

    def close(self) -> None:
        """Release everything. Subtask thread."""
        ...


def keyed_backend(
    stated: StateBackend | None, context: OperatorContext, keys: Sequence[pa.Field]
) -> KeyedBackend:
    """Make the backend that the operator states, or else the job's. `keys` are the key columns."""
    backend = stated or context.backend
    if backend.kind == "heap":
        return HeapBackend(keys, context.max_parallelism)
    database = make_database(backend, context)
    return RocksBackend(database, keys, context.max_parallelism)


def make_database(backend: StateBackend, context: OperatorContext) -> RocksDatabase:
    """Make the database of an operator of a subtask; its folder appears when it is first used."""
    # Not at the top: jobs on the heap need not wait for rocksdict.
    from ..state.rocks.database import RocksDatabase
    from ..state.rocks.files import RocksSizes

    assert context.backend.folder is not None, "a worker names a folder for databases"
    groups = key_group_range(context.max_parallelism, context.parallelism, context.index)
    sizes = RocksSizes(backend.write_buffer_bytes, backend.block_cache_bytes)
    name = f"{context.operator}/{context.index}"
    engine = context.backend.engine
    return RocksDatabase(context.backend.folder(), name, groups, sizes, engine=engine)


class HeapBackend:
    """States in memory, which freeze themselves."""

    def __init__(self, keys: Sequence[pa.Field], max_parallelism: int) -> None:
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._states: dict[str, KeyedState] = {}

    def bind(self, declared: KeyedState, name: str, current: CurrentKey) -> KeyedState:
        """See `KeyedBackend`."""
        self._states[name] = declared.bind(name, current)
        return self._states[name]

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeyedBackend`."""
        return False

    def begin(self) -> None:
        """Nothing is to be done."""

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Nothing is to be done."""

    def commit(self) -> None:
        """The states have merged already."""

    def freeze_database(self) -> DatabaseSnapshot | None:
        """There is none."""
        return None

    def snapshot(self) -> list[StateSnapshot]:
        """Copy each state's dictionary."""
        return [
            StateSnapshot(name, StateKind.KEYED, state.freeze(self._keys, self._max_parallelism))
            for name, state in self._states.items()
        ]

    def close(self) -> None:
        """Nothing is held outside memory."""


class RocksBackend:
    """States in one database."""

    def __init__(
        self,
        database: RocksDatabase,
        keys: Sequence[pa.Field],
        max_parallelism: int,
    ) -> None:
        self._database = database
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._spaces: dict[str, RocksKeyed] = {}

    def bind(self, declared: KeyedState, name: str, current: CurrentKey) -> KeyedState:
        """See `KeyedBackend`."""
        from ..state.rocks.keyed import RocksKeyed

        space = RocksKeyed(
            self._database,
            name,
            self._keys,
            declared.type,
            declared.from_arrow,
            self._max_parallelism,
        )
        self._spaces[name] = space
        return declared.bind(name, current, space)

    def restore(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeyedBackend`."""
        layouts = {name: space.layout for name, space in self._spaces.items()}
        return take_over(self._database, databases, layouts)

    def begin(self) -> None:
        """Apply what earlier calls wrote."""
        self._database.settle()

    def prefetch(self, keys: Iterable[Key]) -> None:
        """See `KeyedBackend`."""
        wanted = list(keys)
        for space in self._spaces.values():
            space.prefetch(wanted)

    def commit(self) -> None:
        """See `KeyedBackend`."""
        self._database.commit()
        for space in self._spaces.values():
            space.forget()

    def snapshot(self) -> list[StateSnapshot]:
        """Nothing lies on the heap."""
        return []

    def freeze_database(self) -> DatabaseSnapshot | None:
        """See `KeyedBackend`."""
        return self._database.snapshot()

    def close(self) -> None:
        """See `KeyedBackend`."""
        self._database.close()


def take_over(
    database: RocksDatabase,
    restored: Sequence[RestoredDatabase],
    layouts: dict[str, StateLayout],
) -> bool:
    """Restore the files if they hold states of the program and as it has them now.

    False: nothing was done; the operator's `restore` judges the tables, as it would those of the heap.
    """
    for found in (layout for one in restored for layout in one.layouts):
        wanted = layouts.get(found.name)
        if wanted is None or found.keys != wanted.keys or not found.schema.equals(wanted.schema):
            return False
    database.restore(restored)
    return True
