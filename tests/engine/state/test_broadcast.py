from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.state.broadcast import BroadcastState, broadcast_state
from headrace.engine.state.keyed import CurrentKey
from headrace.engine.state.types import StateTypeError

from .memory_cases import in_memory


def bound() -> tuple[BroadcastState, CurrentKey]:
    current = CurrentKey("ann")
    return in_memory(broadcast_state(pa.string(), pa.int64()), "limits", current), current


def test_it_is_the_same_for_every_key() -> None:
    state, current = bound()
    state.changeable = True
    state["a"] = 1
    current.key = "bob"
    assert dict(state) == {"a": 1}


def test_it_can_be_changed_while_the_broadcast_side_is_processed_only() -> None:
    state, _ = bound()
    state.changeable = True
    state["a"] = 1
    state.changeable = False
    for change in (
        lambda: state.update(a=2),
        lambda: state.pop("a"),
        lambda: state.clear(),
    ):
        with pytest.raises(
            StateTypeError, match="'limits' can be changed in process_broadcast only"
        ):
            change()
    assert state["a"] == 1


def test_what_is_frozen_is_what_was_committed() -> None:
    state, _ = bound()
    state.changeable = True
    state["a"] = 1
    state.commit()
    state["b"] = None
    frozen = state.freeze_entries()
    state.commit()
    state.clear()
    state.commit()
    assert frozen().to_pylist() == [{"key": "a", "value": 1}]
    assert state.freeze_entries()().num_rows == 0


def test_it_is_taken_back_as_it_was() -> None:
    state, _ = bound()
    state.changeable = True
    state.update({"a": 1, "b": None})
    state.commit()
    other, _ = bound()
    other.load_entries(state.freeze_entries()())
    assert dict(other) == {"a": 1, "b": None}
    assert other.freeze_entries()().equals(state.freeze_entries()())
