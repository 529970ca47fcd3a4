from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.keygroups import key_groups, owner
from headrace.channels.partitioners import (
    RUN_ROWS_MIN,
    Broadcast,
    Custom,
    Forward,
    Hash,
    Partitioner,
    Rebalance,
    Shuffle,
)

SCHEMA = pa.schema([("key", pa.int64()), ("sequence", pa.int64()), ("text", pa.string())])


def by_sequence(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
    targets: npt.NDArray[np.int64] = batch.column("sequence").to_numpy() % consumers
    return targets


POINT_TO_POINT: list[Partitioner] = [
    Rebalance(),
    Shuffle(),
    Hash(("key",), 128),
    Hash(("text", "key"), 128),
    Custom(by_sequence),
    Custom(by_sequence, ("sequence",)),
]
ALL: list[Partitioner] = [Forward(), Broadcast(), *POINT_TO_POINT]


def batch_of(first: int, rows: int, keys: int = 10) -> pa.RecordBatch:
    sequences = np.arange(first, first + rows)
    columns = [sequences * 7 % keys, sequences, [f"t{value % 13}" for value in sequences]]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def value_addresses(batch: pa.RecordBatch) -> set[int]:
    return {batch.column(0).buffers()[1].address, batch.column(2).buffers()[2].address}


@pytest.mark.parametrize("partitioner", POINT_TO_POINT, ids=lambda value: value.name)
@given(sizes=st.lists(st.integers(0, 1500), max_size=5), consumers=st.integers(1, 9))
def test_every_row_goes_to_one_consumer_in_order(
    partitioner: Partitioner, sizes: list[int], consumers: int
) -> None:
    splitter = partitioner.open(0, 2, consumers, 7)
    received: dict[int, list[int]] = {target: [] for target in range(consumers)}
    first = 3
    for size in sizes:
        whole = batch_of(first - 3, size + 5).slice(3, size)
        for target, rows in splitter.split(whole):
            assert rows.num_rows > 0
            assert rows.schema == SCHEMA
            rows.validate(full=True)
            taken = rows.column("sequence").to_numpy() - first + 3
            assert rows.equals(batch_of(first - 3, size + 5).take(pa.array(taken)))
            received[target] += rows.column("sequence").to_pylist()
        first += size
    assert sorted(chain.from_iterable(received.values())) == list(range(3, first))
    for sequences in received.values():
        assert sequences == sorted(sequences)


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
    first = Hash(("key",), 64).open(0, 2, 5, 1).targets(batch)
    second = Hash(("key",), 64).open(1, 2, 5, 2).targets(batch)
    assert first.tolist() == second.tolist()
    assert set(first.tolist()) == set(range(5))


@pytest.mark.parametrize("consumers", [2, 3])
def test_hash_does_not_copy_when_one_consumer_gets_all(consumers: int) -> None:
    batch = batch_of(0, 100, keys=1)
    ((_, rows),) = Hash(("key",), 128).open(0, 1, consumers, 0).split(batch)
    assert rows is batch


@pytest.mark.parametrize("partitioner", [Rebalance(), Shuffle()], ids=lambda value: value.name)
@pytest.mark.parametrize("rows", [1, 300, 5000])
def test_slices_without_a_key_share_the_memory_of_the_batch(
    partitioner: Partitioner, rows: int
) -> None:
    batch = batch_of(0, rows)
    for _, part in partitioner.open(0, 1, 4, 0).split(batch):
        assert value_addresses(part) == value_addresses(batch)


@given(st.lists(st.integers(1, 4000), max_size=30), st.integers(1, 9), st.integers(0, 8))
def test_rebalance_keeps_the_shares_even(sizes: list[int], consumers: int, producer: int) -> None:
    splitter = Rebalance().open(producer, 9, consumers, 0)
    dealt = dict.fromkeys(range(consumers), 0)
    for size in sizes:
        slices = splitter.split(batch_of(0, size))
        assert len({target for target, _ in slices}) == len(slices)
        assert len(slices) == min(consumers, max(1, size // RUN_ROWS_MIN))
        for target, rows in slices:
            dealt[target] += rows.num_rows
    assert max(dealt.values()) - min(dealt.values()) <= 2 * RUN_ROWS_MIN


def test_rebalance_gives_small_batches_whole_and_in_turn() -> None:
    splitter = Rebalance().open(1, 2, 3, 0)
    targets = [target for _ in range(6) for target, _ in splitter.split(batch_of(0, 20))]
    assert targets == [1, 2, 0, 1, 2, 0]


def test_shuffle_repeats_with_its_seed_and_differs_between_seeds_and_producers() -> None:
    def run(producer: int, seed: int) -> list[tuple[int, int]]:
        splitter = Shuffle().open(producer, 2, 4, seed)
        slices = [
            part for size in (10, 400, 3000) * 5 for part in splitter.split(batch_of(0, size))
        ]
        return [(target, rows.num_rows) for target, rows in slices]

    assert run(0, 1) == run(0, 1)
    assert run(0, 1) != run(0, 2)
    assert run(0, 1) != run(1, 1)


@given(st.lists(st.integers(1, 9000), max_size=40), st.integers(2, 9), st.integers(0, 8))
def test_shuffle_starves_no_consumer(sizes: list[int], consumers: int, seed: int) -> None:
    splitter = Shuffle().open(0, 1, consumers, seed)
    dealt = dict.fromkeys(range(consumers), 0)
    for size in sizes:
        for target, rows in splitter.split(batch_of(0, size)):
            dealt[target] += rows.num_rows
    largest = max([RUN_ROWS_MIN, *sizes])
    assert max(dealt.values()) - min(dealt.values()) <= RUN_ROWS_MIN + largest


@pytest.mark.parametrize("rows", [10, 700, 5000])
def test_shuffle_gives_every_place_of_a_batch_to_every_consumer_evenly(rows: int) -> None:
    splitter = Shuffle().open(0, 1, 4, 5)
    batch = batch_of(0, rows)
    counts = np.zeros((4, rows), np.int64)
    for _ in range(800):
        for target, part in splitter.split(batch):
            first = part.column("sequence")[0].as_py()
            counts[target, first : first + part.num_rows] += 1
            assert part.num_rows >= min(rows, RUN_ROWS_MIN // 2)
    assert counts.min() > 130
    assert counts.max() < 270


def test_broadcast_gives_the_same_batch_to_all() -> None:
    batch = batch_of(0, 5)
    slices = Broadcast().open(0, 1, 3, 0).split(batch)
    assert [target for target, _ in slices] == [0, 1, 2]
    assert all(rows is batch for _, rows in slices)


def test_forward_connects_equal_indexes_only() -> None:
    assert Forward().consumers(2, 4, 4) == [2]
    batch = batch_of(0, 5)
    assert Forward().open(2, 4, 4, 0).split(batch) == [(0, batch)]
    with pytest.raises(ValueError, match="equal parallelism on both sides, not 4 and 3"):
        Forward().consumers(2, 4, 3)
    with pytest.raises(ValueError, match="equal parallelism on both sides, not 4 and 3"):
        Forward().open(2, 4, 3, 0)


@pytest.mark.parametrize("partitioner", ALL[1:], ids=lambda value: value.name)
def test_all_but_forward_connect_to_every_consumer(partitioner: Partitioner) -> None:
    assert list(partitioner.consumers(1, 2, 3)) == [0, 1, 2]


@pytest.mark.parametrize("partitioner", ALL, ids=lambda value: value.name)
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_an_empty_batch_gives_no_slices(partitioner: Partitioner, consumers: int) -> None:
    assert list(partitioner.open(0, consumers, consumers, 0).split(batch_of(0, 0))) == []


@pytest.mark.parametrize("partitioner", ALL, ids=lambda value: value.name)
def test_partitioners_are_picklable_values(partitioner: Partitioner) -> None:
    copy = pickle.loads(pickle.dumps(partitioner))
    assert copy == partitioner
    assert hash(copy) == hash(partitioner)


def test_names_are_stable() -> None:
    names = [partitioner.name for partitioner in ALL]
    assert list(dict.fromkeys(names)) == [
        "forward",
        "broadcast",
        "rebalance",
        "shuffle",
        "hash",
        "custom",
    ]


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


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0, 1], r"one target per row, shape \(3,\), not \(2,\)"),
        (1, r"one target per row, shape \(3,\), not \(\)"),
        ([[0], [1], [1]], r"one target per row"),
        ([0.0, 1.0, 1.0], "integers without nulls, not float64"),
        ([True, False, True], "integers without nulls, not bool"),
        (pa.array([0, None, 1]), "integers without nulls, not float64"),
        (["a", "b", "c"], "integers without nulls"),
        ([0, 2, 1], r"from 0 to 1, not 2 \(row 1\)"),
        ([0, 1, -1], r"from 0 to 1, not -1 \(row 2\)"),
        (np.array([0, 256, 1]), r"from 0 to 1, not 256 \(row 1\)"),
    ],
)
def test_custom_refuses_a_wrong_answer(answer: npt.ArrayLike, message: str) -> None:
    splitter = Custom(lambda batch, consumers: answer).open(0, 1, 2, 0)
    with pytest.raises(ValueError, match=message):
        splitter.split(batch_of(0, 3))


@pytest.mark.parametrize("answer", [[1, 0, 1], pa.array([1, 0, 1]), np.array([1, 0, 1], np.uint64)])
def test_custom_takes_lists_and_arrays(answer: npt.ArrayLike) -> None:
    slices = Custom(lambda batch, consumers: answer).open(0, 1, 300, 0).split(batch_of(0, 3))
    received = {target: rows["sequence"].to_pylist() for target, rows in slices}
    assert received == {0: [1], 1: [0, 2]}


def test_custom_shows_the_function_its_columns_only() -> None:
    seen: list[Sequence[str]] = []

    def function(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
        seen.append(batch.schema.names)
        return np.zeros(batch.num_rows, np.int64)

    Custom(function, ("text",)).open(0, 1, 2, 0).split(batch_of(0, 3))
    Custom(function).open(0, 1, 2, 0).split(batch_of(0, 3))
    assert seen == [["text"], ["key", "sequence", "text"]]
