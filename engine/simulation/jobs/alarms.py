"""The clock in simulated jobs: a keyed operator that holds records back until a processing-time timer fires.

What comes out of it is what came in, each key's records in order, whenever the timers fire: so a timer that is lost, or state that
its firing did not take along, shows in what the sinks hold. So does one that fires a second time: there is nothing to let go of then. Time is the
simulation's.
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
    """Lets go of a key's records a while after the first of them."""

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
