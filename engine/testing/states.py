"""States of readers and writers, frozen and dealt out among new ones as a restart does."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.channels.keygroups import key_group_range

from ..contract.operators import RestoredState, Stateful, StateKind

#: Key groups of every check.
MAX_PARALLELISM = 8


def frozen(members: Sequence[Stateful]) -> list[list[RestoredState]]:
    """Freeze the committed state of every member."""
    return [[RestoredState(s.name, s.kind, s.table()) for s in m.snapshot()] for m in members]


def dealt(
    states: Sequence[Sequence[RestoredState]], parallelism: int, index: int
) -> list[RestoredState]:
    """Return the share of one new subtask, given the states of all old ones."""
    return [
        _cut(state, parallelism, index)
        for old, each in enumerate(states)
        for state in each
        if _gets(state.kind, old, len(states), index, parallelism)
    ]


def _gets(kind: StateKind, old: int, old_count: int, new: int, new_count: int) -> bool:
    match kind:
        case StateKind.KEYED | StateKind.UNION:
            return True
        case StateKind.BROADCAST:
            return old == new % old_count
        case StateKind.LIST:
            return old % new_count == new


def _cut(state: RestoredState, parallelism: int, index: int) -> RestoredState:
    if state.kind is not StateKind.KEYED:
        return state
    groups = key_group_range(MAX_PARALLELISM, parallelism, index)
    column = state.table["__key_group"]
    inside = pc.is_in(column, pa.array(list(groups), column.type))
    return RestoredState(state.name, state.kind, state.table.filter(inside))
