from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.state.slots import IntegerSlots

WORDS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3)


@given(st.lists(st.lists(WORDS | st.none(), min_size=1, max_size=40), max_size=8))
def test_equal_keys_share_a_slot_and_different_ones_do_not(batches: list[list[int | None]]) -> None:
    slots = IntegerSlots()
    model: dict[int | None, int] = {}
    for keys in batches:
        words = np.array([0 if key is None else key for key in keys], np.int64)
        valid = np.array([key is not None for key in keys])
        for key, slot in zip(keys, slots.lookup(words, valid).tolist(), strict=True):
            assert model.setdefault(key, slot) == slot
    assert sorted(model.values()) == list(range(slots.count))
    for key, slot in model.items():
        assert slots.words(slots.count)[slot] == (0 if key is None else key)


def test_slots_survive_the_growth_of_the_table() -> None:
    slots = IntegerSlots()
    words = np.arange(-100_000, 100_000, dtype=np.int64) * 4096
    first = slots.lookup(words)
    assert slots.count == len(words)
    np.testing.assert_array_equal(slots.lookup(words), first)
    np.testing.assert_array_equal(slots.words(slots.count)[first], words)


def test_the_null_slot_survives_the_growth_of_the_table() -> None:
    slots = IntegerSlots()
    (null,) = slots.lookup(np.zeros(1, np.int64), np.array([False])).tolist()
    slots.lookup(np.arange(50_000, dtype=np.int64))
    (zero,) = slots.lookup(np.zeros(1, np.int64)).tolist()
    assert null != zero
    assert slots.lookup(np.zeros(1, np.int64), np.array([False])).tolist() == [null]


def test_a_view_of_the_words_does_not_change_when_keys_are_added() -> None:
    slots = IntegerSlots()
    slots.lookup(np.arange(1000, dtype=np.int64))
    view = slots.words(1000)
    before = view.copy()
    slots.lookup(np.arange(100_000, dtype=np.int64))
    np.testing.assert_array_equal(view, before)
