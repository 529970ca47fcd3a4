"""Declared state on RocksDB: the same calls give the same answers as on the heap, and so does
every snapshot.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.engine.contract.operators import DatabaseSnapshot
from headrace.engine.operators.backends import bound_states
from headrace.engine.state.heap.backend import HeapBackend
from headrace.engine.state.keyed import CurrentKey, KeyedState, list_state, map_state, value_state
from headrace.engine.state.rocks import keyed
from headrace.engine.state.rocks.backend import RocksBackend
from headrace.engine.state.rocks.database import RocksDatabase

from ...operators.rocks_cases import SMALL, tables

KEYS = [pa.field("k", pa.int64()), pa.field("s", pa.string())]
DECLARED = {
    "total": value_state(pa.int64(), default=7),
    "name": value_state(pa.string()),
    "seen": list_state(pa.int64()),
    "days": list_state(pa.date32()),
    "groups": map_state(pa.string(), pa.float64()),
}
key = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from(["", "x"]))


class Both(RuleBasedStateMachine):
    """The heap is the model of the database."""

    def __init__(self) -> None:
        super().__init__()
        #: So that values leave and come back.
        self.few = patch.object(keyed, "_AT_HAND_MAX", 2)
        self.few.start()
        self.folder = tempfile.TemporaryDirectory()
        database = RocksDatabase(f"{self.folder.name}/db", "db", range(8), SMALL)
        self.memory = HeapBackend(8)
        self.backend = RocksBackend(database, 8)
        self.current = CurrentKey((0, "x"))
        self.heap = bound_states(DECLARED, self.memory, KEYS, self.current)
        self.rocks = bound_states(DECLARED, self.backend, KEYS, self.current)
        self.frozen: list[tuple[DatabaseSnapshot, dict[str, pa.Table]]] = []

    @initialize()
    def begin(self) -> None:
        self.backend.begin()

    @rule(key=key)
    def turn_to(self, key: Any) -> None:
        self.current.key = key

    @rule(keys=st.lists(key, max_size=4))
    def prefetch(self, keys: list[Any]) -> None:
        self.backend.prefetch(keys)

    @rule(state=st.sampled_from(["total", "name"]), number=st.none() | st.integers(0, 99))
    def set(self, state: str, number: int | None) -> None:
        value = str(number) if state == "name" else number
        for states in (self.heap, self.rocks):
            states[state].value = value  # type: ignore[attr-defined]

    @rule(number=st.integers(0, 99))
    def append(self, number: int) -> None:
        for states in (self.heap, self.rocks):
            states["seen"].append(number)  # type: ignore[attr-defined]

    @rule(key=st.sampled_from("ab"), value=st.none() | st.floats(allow_nan=False))
    def put(self, key: str, value: float | None) -> None:
        for states in (self.heap, self.rocks):
            states["groups"][key] = value  # type: ignore[index]

    @rule(state=st.sampled_from(sorted(DECLARED)))
    def clear(self, state: str) -> None:
        for states in (self.heap, self.rocks):
            states[state].clear()

    @rule()
    def commit(self) -> None:
        for state in (*self.heap.values(), *self.rocks.values()):
            state.commit()
        self.backend.commit()

    @rule()
    def settle(self) -> None:
        """Not every call begins with it."""
        self.backend.begin()

    @rule(key=key, number=st.integers(0, 99))
    def work(self, key: Any, number: int) -> None:
        """A whole call."""
        self.current.key = key
        self.append(number)
        self.set("total", number)
        self.commit()

    @rule()
    def freeze(self) -> None:
        """Amid a call."""
        snapshot = self.backend.freeze_database()
        assert snapshot is not None
        expected = {state.name: state.table() for state in self.memory.snapshot()}
        self.frozen.append((snapshot, expected))

    @rule(which=st.integers(0, 9))
    def store(self, which: int) -> None:
        """A storage thread gets to any of the snapshots, not always to the oldest first."""
        if self.frozen:
            snapshot, expected = self.frozen.pop(which % len(self.frozen))
            for name, table in tables(snapshot).items():
                assert rows(table) == rows(expected[name]), name

    @rule(which=st.integers(0, 9))
    def give_up(self, which: int) -> None:
        if self.frozen:
            snapshot, _ = self.frozen.pop(which % len(self.frozen))
            snapshot.release()

    @invariant()
    def both_read_the_same(self) -> None:
        for name, state in self.heap.items():
            assert seen(self.rocks[name]) == seen(state), name

    def teardown(self) -> None:
        self.few.stop()
        self.backend.close()
        assert list(Path(self.folder.name).iterdir()) == []
        self.folder.cleanup()


def seen(state: Any) -> Any:
    if isinstance(state, KeyedState) and hasattr(state, "value"):
        return state.value, state.exists  # type: ignore[attr-defined]
    return list(state.items()) if hasattr(state, "items") else list(state)


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=25, stateful_step_count=30)
