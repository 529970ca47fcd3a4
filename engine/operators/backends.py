"""The choice of an operator's backend of keyed state, one for each operator of each subtask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    StateBackend,
    StateSnapshot,
)
from ..state.backend import KeyedBackend
from ..state.expiry import stamp_name, stamps_of
from ..state.heap.backend import HeapBackend
from ..state.keyed import CurrentKey, KeyedState


def keyed_backend(stated: StateBackend | None, context: OperatorContext) -> KeyedBackend:
    """Make the operator's own backend, or else the job's."""
    chosen = stated or context.backend
    if chosen.kind == "heap":
        return HeapBackend(context.max_parallelism)
    assert context.backend.databases is not None, "a worker has a place for databases"
    backend: KeyedBackend = context.backend.databases(chosen, context)
    return backend


def bound_states(
    declared: Mapping[str, KeyedState],
    backend: KeyedBackend,
    keys: Sequence[pa.Field],
    current: CurrentKey,
) -> dict[str, KeyedState]:
    """Bind declared states to tables of the backend; an expiring state gets a second state.

    Raises: UserError as `stamps_of`.
    """
    stamps = stamps_of(declared)
    states = {
        name: state.bind(name, current, backend.values(name, keys, state.type, state.from_arrow))
        for name, state in {**declared, **stamps}.items()
    }
    for name in declared:
        if stamp_name(name) in stamps:
            states[name].expires_by(states[stamp_name(name)])
    return states


class KeyedOperator:
    """Base of operators with keyed state: the life of their backend."""

    _backend: KeyedBackend | None = None

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeepsDatabase`."""
        return self._opened().restore(databases)

    def commit(self) -> None:
        """Publish the writes of the last call."""
        self._opened().commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze committed tables outside a database."""
        return self._opened().snapshot()

    def freeze_database(self) -> DatabaseSnapshot | None:
        """See `KeepsDatabase`."""
        return self._opened().freeze_database()

    def close(self) -> None:
        """Release the backend."""
        if self._backend is not None:
            self._backend.close()

    def _opened(self) -> KeyedBackend:
        assert self._backend is not None, "opened"
        return self._backend
