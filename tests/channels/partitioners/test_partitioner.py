"""Laws of all partitioners, and the classes that are refused."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import (
    KINDS,
    Affinity,
    Partitioner,
    Redistribution,
    Splitter,
)
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.registry import wire_names
from headrace.channels.partitioners.shuffle import Shuffle

from .batches import SCHEMA, batch_of, by_sequence, value_addresses

POINT_TO_POINT: list[Partitioner] = [
    Rebalance(),
    Shuffle(),
    Hash(("key",), 128),
    Hash(("text", "key"), 128),
    Custom(by_sequence),
    Custom(by_sequence, ("sequence",)),
    ByRange("sequence", ("100", "700")),
    ByRange("text", ("t11", "t4", "t8")),
]
ALL: list[Partitioner] = [Forward(), Broadcast(), *POINT_TO_POINT]


def test_every_kind_is_tested_here() -> None:
    assert sorted({partitioner.name for partitioner in ALL}) == wire_names()


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


@pytest.mark.parametrize("rows", [1, 300, 5000])
def test_slices_of_a_rebalance_share_the_memory_of_the_batch(rows: int) -> None:
    batch = batch_of(0, rows)
    for _, part in Rebalance().open(0, 1, 4, 0).split(batch):
        assert value_addresses(part) == value_addresses(batch)


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


@pytest.mark.parametrize("partitioner", ALL, ids=lambda value: value.name)
def test_a_router_is_what_affinity_to_records_means(partitioner: Partitioner) -> None:
    batch = batch_of(0, 40)
    if partitioner.affinity is not Affinity.RECORD:
        with pytest.raises(AssertionError, match="no affinity to records"):
            partitioner.router(3)
        return
    expected = dict(partitioner.open(1, 2, 3, 5).split(batch))
    targets = partitioner.router(3)(batch)
    for target, rows in expected.items():
        assert rows.equals(batch.take((targets == target).nonzero()[0]))
    assert sum(rows.num_rows for rows in expected.values()) == 40


@pytest.mark.parametrize("partitioner", ALL, ids=lambda value: value.name)
def test_metadata_gives_a_partitioner_back_or_says_that_it_cannot(partitioner: Partitioner) -> None:
    noted = (partitioner.key_columns, partitioner.parameters)
    restored = type(partitioner).restored(*noted, 128)
    assert restored in (None, partitioner)
    assert (restored is not None) == (partitioner.name in ("hash", "range"))


def body(**changes: object) -> dict[str, object]:
    """A class body of a good kind of edge, but for `changes`; None leaves an attribute out."""

    def open_(
        self: object, producer: int, producers: int, consumers: int, seed: int
    ) -> Splitter | None:
        return None

    good = {
        "name": "new",
        "affinity": Affinity.NONE,
        "redistribution": Redistribution.SHARES,
        "open": open_,
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def test_a_kind_that_says_all_that_is_asked_registers_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.channels.partitioners.partitioner.KINDS", dict(KINDS))
    type("New", (Partitioner,), body())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": None}, "New needs name: str"),
        ({"affinity": None}, "New needs affinity: Affinity"),
        ({"affinity": "none"}, "New needs affinity: Affinity"),
        ({"redistribution": None}, "New needs redistribution: Redistribution"),
        ({"open": None}, r"New has affinity none; needs open\(\)"),
        (
            {"redistribution": Redistribution.FILTER},
            "New: redistribution by filter does not respect affinity none",
        ),
        (
            {"affinity": Affinity.RECORD, "redistribution": Redistribution.FILTER},
            r"New has affinity record; needs router\(\)",
        ),
        ({"name": "hash"}, "New and Hash are both named 'hash'"),
    ],
)
def test_a_kind_that_forgets_something_does_not_import(
    changes: dict[str, object], sentence: str
) -> None:
    before = dict(KINDS)
    with pytest.raises(TypeError, match=sentence):
        type("New", (Partitioner,), body(**changes))
    assert before == KINDS


def test_what_a_kind_inherits_from_another_is_not_what_it_says() -> None:
    with pytest.raises(TypeError, match="Keyless needs name: str"):

        @dataclass(frozen=True, slots=True)
        class Keyless(Hash):
            affinity: ClassVar[Any] = Affinity.NONE


@pytest.mark.parametrize("affinity", Affinity)
def test_every_affinity_has_a_redistribution(affinity: Affinity) -> None:
    assert affinity in {kind.affinity for kind in KINDS.values()}
