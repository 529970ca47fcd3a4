"""The choice of an operator's backend of keyed state, one for each operator of each subtask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..contract.operators import OperatorContext, StateBackend
from ..state.backend import KeyedBackend
from ..state.expiry import stamp_name, stamps_of
from ..state.heap.backend import HeapBackend
from ..state.keyed import CurrentKey, KeyedState


def keyed_backend(stated: StateBackend | None, context: OperatorContext) -> KeyedBackend:
    """Make the backend that the operator states, or else the job's."""
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
    """Bind declared states to tables of the backend, with a state beside each that expires.

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
