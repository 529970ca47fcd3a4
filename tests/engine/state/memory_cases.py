"""Declared state in memory, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from headrace.engine.state.heap.values import HeapValues
from headrace.engine.state.keyed import CurrentKey, KeyedState

State = TypeVar("State", bound=KeyedState)


def in_memory(declared: State, name: str, current: CurrentKey) -> State:
    """Bind a declared state to a table of its own."""
    return declared.bind(name, current, HeapValues())


def freeze(
    state: KeyedState, keys: Sequence[pa.Field], max_parallelism: int
) -> Callable[[], pa.Table]:
    """Freeze the committed values; the result makes the table."""
    assert isinstance(state._committed, HeapValues)
    schema = pa.schema([*keys, pa.field(state._name, state.type)])
    return state._committed.freeze(schema, max_parallelism)
