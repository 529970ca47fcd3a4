"""Times of last writes: a second state beside each declared state that expires (`keyed.py`).

Time is event time: the later of the record's time and the watermark. So the visibility of a value
depends on the records of its key and their order, not on the speed of a run, and a replay after a
failure sees the same values.

Source: Flink's `StateTtlConfig` (update on write, never return expired, incremental clean-up);
deviations: event time, where Flink has processing time alone, and lists and maps that expire as a
whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ..contract.errors import UserError
from .keyed import KeyedState, ValueState

#: Keys of each state that a call checks for expiry: a fraction of a millisecond.
SWEPT_MAX = 1000

# Format, never change.
_SUFFIX = "__written"


def stamps_of(declared: Mapping[str, KeyedState]) -> dict[str, KeyedState]:
    """Make the states for times of last writes, by name, for each state that expires.

    Raises: UserError when a declared state already has the name.
    """
    stamps: dict[str, KeyedState] = {}
    for name, state in declared.items():
        if state.ttl_ns is not None:
            if stamp_name(name) in declared:
                raise UserError(
                    f"a state cannot be called {stamp_name(name)!r}, where {name!r} expires;"
                    " rename it"
                )
            stamps[stamp_name(name)] = ValueState(pa.int64(), None)
    return stamps


def stamp_name(state: str) -> str:
    """Return the name of the state for the times of last writes to `state`."""
    return state + _SUFFIX
