"""Storage with the speed of a distant object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.bench.slowed_storage import BYTES_PER_S, REQUEST_S, SCHEME
from headrace.engine.storage.checkpoint_storage import open_store
from headrace.recovery.store import AlreadyExists, NotFound, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"{SCHEME}://{tmp_path}/checkpoints")


def took_s(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_it_is_a_store(store: Store) -> None:
    store.put("job/chk-1/data", b"old")
    store.put("job/chk-1/data", b"new")
    assert store.get("job/chk-1/data", 1, 2) == b"ew"
    store.create("job/epochs/1", b"")
    with pytest.raises(AlreadyExists):
        store.create("job/epochs/1", b"other")
    assert store.list("job/") == ["job/chk-1/data", "job/epochs/1"]
    store.delete("job/chk-1/data")
    with pytest.raises(NotFound):
        store.get("job/chk-1/data")


def test_each_request_waits_and_bytes_take_their_time(store: Store) -> None:
    content = bytes(5_000_000)
    transfer_s = len(content) / BYTES_PER_S
    assert took_s(lambda: store.put("a", content)) >= REQUEST_S + transfer_s
    assert took_s(lambda: store.get("a")) >= REQUEST_S + transfer_s
    assert took_s(lambda: store.list("")) >= REQUEST_S
    assert took_s(lambda: store.delete("a")) >= REQUEST_S
