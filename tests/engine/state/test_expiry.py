from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.state.expiry import stamp_name, stamps_of
from headrace.engine.state.keyed import (
    CurrentKey,
    KeyedState,
    list_state,
    map_state,
    value_state,
)

from .memory_cases import freeze, in_memory

SECOND = 10**9


def bound(declared: Any) -> tuple[Any, KeyedState, CurrentKey]:
    """A state of that kind, when its keys were written, and the key and time that it speaks of."""
    current = CurrentKey("a", 0)
    state = in_memory(declared, "s", current)
    (name, stamps), *_ = stamps_of({"s": declared}).items()
    kept = in_memory(stamps, name, current)
    state.expires_by(kept)
    return state, kept, current


def test_a_value_is_there_until_it_expires_and_then_the_default_is() -> None:
    state, _, current = bound(value_state(pa.int64(), default=7, ttl="10s"))
    state.value = 1
    current.now_ns = 10 * SECOND - 1
    assert (state.value, state.exists) == (1, True)
    current.now_ns += 1
    assert (state.value, state.exists) == (7, False)


def test_each_write_begins_it_anew_and_a_late_one_does_not_shorten_it() -> None:
    state, _, current = bound(value_state(pa.int64(), ttl="10s"))
    current.now_ns = 8 * SECOND
    state.value = 1
    current.now_ns = 3 * SECOND
    state.value = 2
    current.now_ns = 15 * SECOND
    assert state.value == 2


def test_a_list_begins_anew_behind_one_that_has_expired() -> None:
    state, _, current = bound(list_state(pa.int64(), ttl="10s"))
    state.append(1)
    state.commit()
    current.now_ns = 10 * SECOND
    assert len(state) == 0
    state.append(2)
    assert list(state) == [2]


def test_a_map_begins_anew_behind_one_that_has_expired() -> None:
    state, stamps, current = bound(map_state(pa.string(), pa.int64(), ttl="10s"))
    state["x"] = 1
    state.commit()
    stamps.commit()
    current.now_ns = 10 * SECOND
    assert "x" not in state
    state["y"] = 2
    assert dict(state) == {"y": 2}


def test_what_is_cleared_is_written_nowhere() -> None:
    state, stamps, _ = bound(value_state(pa.int64(), ttl="10s"))
    state.value = 1
    state.clear()
    state.commit()
    stamps.commit()
    for each in (state, stamps):
        assert freeze(each, [pa.field("k", pa.string())], 16)().num_rows == 0


def test_a_sweep_removes_what_has_expired_some_keys_at_a_time() -> None:
    state, stamps, current = bound(value_state(pa.int64(), ttl="10s"))
    for number in range(10):
        current.key, current.now_ns = str(number), number * SECOND
        state.value = number
    left = []
    for _ in range(4):
        for each in (state, stamps):
            each.commit()
        left.append(freeze(state, [pa.field("k", pa.string())], 16)().num_rows)
        state.sweep(15 * SECOND, 4)
    assert left == [10, 6, 4, 4]


def test_a_sweep_spares_what_the_call_has_written() -> None:
    state, stamps, current = bound(value_state(pa.int64(), ttl="10s"))
    state.value = 1
    state.commit()
    stamps.commit()
    current.now_ns = 12 * SECOND
    state.value = 2
    state.sweep(12 * SECOND, 100)
    assert state.value == 2


@pytest.mark.parametrize("ttl", [0, "40000d", "soon"])
def test_a_time_to_live_that_is_none_is_refused(ttl: Any) -> None:
    with pytest.raises(UserError, match="ttl"):
        value_state(pa.int64(), ttl=ttl)


def test_a_state_with_the_name_of_another_ones_times_is_refused() -> None:
    declared: dict[str, KeyedState] = {
        "s": value_state(pa.int64(), ttl="1s"),
        stamp_name("s"): value_state(pa.int64()),
    }
    with pytest.raises(UserError, match="s__written"):
        stamps_of(declared)
