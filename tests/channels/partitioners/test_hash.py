"""Hash: all records of a key to one consumer."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.keygroups import key_groups, owner
from headrace.channels.partitioners.hash import Hash

from .batches import SCHEMA, batch_of


@given(
    keys=st.lists(st.integers().filter(lambda key: -(1 << 63) <= key < 1 << 63) | st.none()),
    consumers=st.integers(1, 300),
    extra=st.integers(0, 700),
)
def test_hash_sends_each_key_to_the_owner_of_its_key_group(
    keys: list[int | None], consumers: int, extra: int
) -> None:
    limit = consumers + extra
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], names=["k"])
    groups = key_groups(batch, ["k"], limit).tolist()
    expected = {
        key: owner(group, limit, consumers) for key, group in zip(keys, groups, strict=True)
    }
    splitter = Hash(("k",), limit).open(0, 1, consumers, 0)
    received = [
        (key, target) for target, rows in splitter.split(batch) for key in rows["k"].to_pylist()
    ]
    assert Counter(key for key, _ in received) == Counter(keys)
    assert all(expected[key] == target for key, target in received)
    assert [target for _, target in received] == sorted(target for _, target in received)


def test_producers_agree_on_the_consumer_of_a_key() -> None:
    batch = batch_of(0, 1000, keys=100)
    slices = [
        {target: rows["key"].to_pylist() for target, rows in splitter.split(batch)}
        for splitter in (Hash(("key",), 64).open(p, 2, 5, seed) for p, seed in ((0, 1), (1, 2)))
    ]
    assert slices[0] == slices[1]
    assert set(slices[0]) == set(range(5))


@pytest.mark.parametrize("consumers", [2, 3])
def test_hash_does_not_copy_when_one_consumer_gets_all(consumers: int) -> None:
    batch = batch_of(0, 100, keys=1)
    ((_, rows),) = Hash(("key",), 128).open(0, 1, consumers, 0).split(batch)
    assert rows is batch


def test_hash_refuses_what_cannot_be_owned_or_hashed() -> None:
    with pytest.raises(ValueError, match="at least one key column"):
        Hash((), 128)
    with pytest.raises(ValueError, match="from 1 to 32768, not 0"):
        Hash(("k",), 0)
    with pytest.raises(ValueError, match="max parallelism 4, not 5"):
        Hash(("k",), 4).open(0, 1, 5, 0)
    with pytest.raises(ValueError, match="max parallelism 4, not 5"):
        Hash(("k",), 4).consumers(0, 1, 5)
    with pytest.raises(TypeError, match="'f' of type halffloat cannot be a key"):
        Hash(("f",), 4).check(pa.schema([("f", pa.float16())]))
    Hash(("key",), 4).check(SCHEMA)
