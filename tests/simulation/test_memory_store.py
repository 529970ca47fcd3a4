"""The store in memory: a `Store` as any other, that fails when it is told to."""

from __future__ import annotations

import pytest

from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery.store import (
    AlreadyExists,
    NotFound,
    Store,
    StoreRejected,
    StoreUncertain,
)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    made.put("a/1", [b"ab", b"cd"])
    return made


def test_it_keeps_what_it_is_given(store: MemoryStore) -> None:
    as_any: Store = store
    as_any.create("a/2", b"x")
    assert as_any.list("a/") == ["a/1", "a/2"]
    assert (as_any.get("a/1"), as_any.get("a/1", 1, 2)) == (b"abcd", b"bc")
    as_any.delete("a/1")
    as_any.delete("a/1")
    assert store.objects == {"a/2": b"x"}


def test_it_refuses_as_storage_does(store: MemoryStore) -> None:
    with pytest.raises(AlreadyExists):
        store.create("a/1", b"x")
    with pytest.raises(NotFound):
        store.get("a/3")
    with pytest.raises(StoreRejected, match="only 1 are there"):
        store.get("a/1", 3, 2)


@pytest.mark.parametrize("happened", [True, False])
def test_the_next_calls_fail_as_planned(store: MemoryStore, happened: bool) -> None:
    store.fail("delete", StoreUncertain, happened=happened)
    with pytest.raises(StoreUncertain):
        store.delete("a/1")
    assert ("a/1" in store.objects) is not happened
    store.delete("a/1")
    assert store.methods == ["put", "delete", "delete"]


def test_others_act_before_a_call(store: MemoryStore) -> None:
    store.before = lambda method, path: store.objects.update({path: b"theirs"})
    with pytest.raises(AlreadyExists):
        store.create("a/2", b"ours")
    assert store.calls[-1] == ("create", "a/2")
