"""The clock in simulated jobs: a keyed operator holds records back until a processing-time timer.

All records come out, each key's in order, whenever the timers fire. So a lost timer shows in the
sinks, and state that a firing left behind. A second firing shows as well: no record is held by
then. Time is the simulation's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from ...operators.process import StatefulProcessor
from ...operators.timed_process import TimedProcessOperator
from ...state.keyed import list_state
from .source import SCHEMA

#: So long a record is held back at most, once it has come: some pieces of work take as long.
DELAY_NS: Final = 20_000_000
#: No record has this id.
_NOTHING: Final = -1


class Alarms(StatefulProcessor):
    """Lets go of a key's records a while after the first record."""

    held = list_state(pa.struct(list(SCHEMA)))

    def process(self, key: Any, row: dict[str, Any]) -> None:
        """Hold the record back."""
        self.held.append(row)
        if not len(self.processing_timers):
            self.processing_timers.set(self.processing_timers.now_ns + DELAY_NS)

    def on_processing_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        """Let go of all, of which there is some."""
        held = list(self.held)
        yield from held or [dict.fromkeys(SCHEMA.names, 0) | {"id": _NOTHING, "key": key}]
        self.held.clear()


def alarms(name: str) -> TimedProcessOperator:
    """The keyed operator."""
    return TimedProcessOperator(Alarms, ["key"], SCHEMA, SCHEMA, operator=name)
