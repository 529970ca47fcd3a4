from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.errors import UserError
from headrace.engine.state.heap.values import HeapValues
from headrace.engine.state.keyed import CurrentKey, KeyedState, list_state, map_state, value_state
from headrace.engine.state.types import StateTypeError

from .memory_cases import freeze, in_memory

KEY = [pa.field("k", pa.int64())]


def rows(state: KeyedState) -> dict[Any, Any]:
    table = freeze(state, KEY, 8)()
    return dict(zip(table["k"].to_pylist(), table.column(2).to_pylist(), strict=True))


def test_a_value_speaks_of_the_current_key() -> None:
    current = CurrentKey(1)
    total = in_memory(value_state(pa.int64(), default=5), "total", current)
    total.value += 1
    current.key = 2
    assert total.value == 5
    assert not total.exists
    current.key = 1
    assert total.value == 6
    assert total.exists


def test_writes_are_read_at_once_but_frozen_only_after_commit() -> None:
    current = CurrentKey(1)
    total = in_memory(value_state(pa.int64()), "total", current)
    total.value = 1
    total.commit()
    total.value = 2
    assert total.value == 2
    assert rows(total) == {1: 1}
    total.commit()
    assert rows(total) == {1: 2}


def test_a_cleared_key_leaves_the_table_at_commit() -> None:
    total = in_memory(value_state(pa.int64(), default=0), "total", CurrentKey(1))
    total.value = 4
    total.commit()
    total.clear()
    assert total.value == 0
    assert rows(total) == {1: 4}
    total.commit()
    assert rows(total) == {}


def test_none_is_a_value_and_not_the_default() -> None:
    total = in_memory(value_state(pa.int64(), default=3), "total", CurrentKey(1))
    total.value = None
    assert total.value is None
    total.commit()
    assert total.value is None
    assert rows(total) == {1: None}


def test_a_value_changed_in_place_does_not_change_the_state() -> None:
    path = in_memory(value_state(pa.list_(pa.int64()), default=[]), "path", CurrentKey(1))
    mine = [1]
    path.value = mine
    mine.append(2)
    path.value.append(3)
    assert path.value == [1]


def test_a_frozen_list_does_not_see_later_appends() -> None:
    current = CurrentKey(1)
    seen = in_memory(list_state(pa.int64()), "seen", current)
    seen.extend([1, 2])
    seen.commit()
    table = freeze(seen, KEY, 8)
    seen.append(3)
    seen.commit()
    seen.append(4)
    assert table()["seen"].to_pylist() == [[1, 2]]
    assert rows(seen) == {1: [1, 2, 3]}
    assert list(seen) == [1, 2, 3, 4]


def test_a_frozen_map_does_not_see_later_writes() -> None:
    scores = in_memory(map_state(pa.string(), pa.int64()), "scores", CurrentKey(1))
    scores["a"] = 1
    scores.commit()
    table = freeze(scores, KEY, 8)
    scores["a"] = 2
    del scores["a"]
    scores["b"] = 3
    scores.commit()
    assert table()["scores"].to_pylist() == [[("a", 1)]]
    assert dict(scores) == {"b": 3}


def test_an_emptied_list_or_map_has_no_row() -> None:
    seen = in_memory(list_state(pa.int64()), "seen", CurrentKey(1))
    scores = in_memory(map_state(pa.string(), pa.int64()), "scores", CurrentKey(1))
    seen.append(1)
    scores["a"] = 1
    seen.replace([])
    del scores["a"]
    seen.commit()
    scores.commit()
    assert (rows(seen), rows(scores)) == ({}, {})
    assert (len(seen), len(scores)) == (0, 0)


@given(
    st.dictionaries(st.integers(-50, 50), st.lists(st.integers(-5, 5) | st.none(), min_size=1)),
    st.dictionaries(
        st.integers(-50, 50),
        st.dictionaries(st.text(max_size=2), st.floats(allow_nan=False), min_size=1),
    ),
)
def test_what_was_frozen_is_what_is_loaded(
    lists: dict[int, list[int | None]], maps: dict[int, dict[str, float]]
) -> None:
    for declared, model in (
        (list_state(pa.int64()), lists),
        (map_state(pa.string(), pa.float64()), maps),
    ):
        state = in_memory(declared, "s", CurrentKey())
        state.load(model.keys(), [dict(v) if isinstance(v, dict) else v for v in model.values()])
        table = freeze(state, KEY, 8)()
        again = in_memory(declared, "s", CurrentKey())
        again.load(table["k"].to_pylist(), table["s"].to_pylist())
        assert freeze(again, KEY, 8)().sort_by("k").equals(table.sort_by("k"))
        assert isinstance(again._committed, HeapValues)
        assert dict(again._committed) == model


def test_values_are_checked_when_written() -> None:
    current = CurrentKey(1)
    total = in_memory(value_state(pa.int64()), "total", current)
    seen = in_memory(list_state(pa.int64()), "seen", current)
    scores = in_memory(map_state(pa.string(), pa.int64()), "scores", current)
    with pytest.raises(StateTypeError, match="state 'total' holds int64, got str 'x'"):
        total.value = "x"
    with pytest.raises(StateTypeError, match="state 'seen'"):
        seen.extend([1, "x"])
    with pytest.raises(StateTypeError, match="the keys of state 'scores'"):
        scores[1] = 1
    with pytest.raises(StateTypeError, match="None as a key"):
        scores[None] = 1
    assert len(seen) == 0


def test_a_default_of_another_type_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="default"):
        value_state(pa.int64(), default="x")


def test_elements_of_a_list_can_be_removed_and_changed() -> None:
    seen = in_memory(list_state(pa.int64()), "seen", CurrentKey(1))
    seen.extend([1, 2, 3, 2, 4])
    seen.commit()
    seen.remove(2)
    assert (seen.pop(), seen.pop(0)) == (4, 1)
    seen.insert(0, 7)
    seen[1] = 8
    assert (list(seen), seen[-1], seen[:2], 8 in seen, 9 in seen) == (
        [7, 8, 2],
        2,
        [7, 8],
        True,
        False,
    )
    del seen[1:]
    seen[1:] = [5, 6]
    seen += [9]
    assert list(seen) == [7, 5, 6, 9]
    seen.commit()
    assert list(seen) == [7, 5, 6, 9]


def test_a_committed_list_is_copied_before_an_element_goes() -> None:
    current = CurrentKey(1)
    seen = in_memory(list_state(pa.int64()), "seen", current)
    seen.extend([1, 2])
    seen.commit()
    held = seen._committed.get(1, ())
    seen.remove(1)
    assert held == [1, 2]


def test_a_list_without_its_last_element_was_never_set() -> None:
    ways: list[Callable[[Any], object]] = [
        lambda seen: seen.remove(1),
        lambda seen: seen.pop(),
        lambda seen: seen.__delitem__(0),
        lambda seen: seen.__setitem__(slice(None), []),
        lambda seen: seen.clear(),
    ]
    for empty in ways:
        seen: Any = in_memory(list_state(pa.int64()), "seen", CurrentKey(1))
        seen.append(1)
        seen.commit()
        empty(seen)
        seen.commit()
        assert len(seen) == 0
        assert seen._committed.get(1, None) is None


def test_wrong_places_and_types_leave_a_list_alone() -> None:
    seen = in_memory(list_state(pa.int64()), "seen", CurrentKey(1))
    seen.append(1)
    with pytest.raises(ValueError, match="state 'seen' holds no 5"):
        seen.remove(5)
    with pytest.raises(IndexError, match="state 'seen' has 1 elements, and none at 3"):
        seen[3] = 2
    with pytest.raises(IndexError, match="none at 3"):
        del seen[3]
    with pytest.raises(StateTypeError, match="'seen'"):
        seen[0] = "x"
    with pytest.raises(StateTypeError, match="'seen'"):
        seen.insert(0, "x")
    assert list(seen) == [1]
