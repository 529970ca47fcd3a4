"""Selective rollback: a processor that partitions its state by time keeps any frontier of it.

Messages of several times may be worked on in any interleaving. A checkpoint at a frontier holds the
parts of the times within, and a rollback drops the parts of the times outside, whenever they were
worked on. So a state may be restored in which the processor never was. A time whose part was
removed when the time was over costs a checkpoint nothing.

The engine's records carry no logical times, so the engine does not use this module.

Source: Isard and Abadi, "Falkirk Wheel", 2.3, 3.3 and Figures 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from .frontier import Frontier, Time, canonical

State = TypeVar("State")
Event = TypeVar("Event")


class TimedState(Generic[State]):
    """State by structured time. Values are replaced, never changed: checkpoints share them."""

    def __init__(self, parts: Mapping[Time, State] | None = None) -> None:
        self._parts: dict[Time, State] = dict(parts or {})

    def get(self, time: Time, default: State) -> State:
        """Return the part of a time."""
        return self._parts.get(time, default)

    def put(self, time: Time, part: State) -> None:
        """Replace the part of a time."""
        self._parts[time] = part

    def remove(self, time: Time) -> None:
        """Forget the part of a time that is over."""
        self._parts.pop(time, None)

    def checkpoint(self, frontier: Frontier) -> dict[Time, State]:
        """Return the parts within a frontier, to be persisted."""
        return {time: part for time, part in self._parts.items() if frontier.contains(*time)}

    def roll_back(self, frontier: Frontier) -> None:
        """Undo everything outside a frontier: what a processor does that has not failed."""
        self._parts = self.checkpoint(frontier)


def retained(history: Iterable[tuple[Time, Event]], frontier: Frontier) -> list[tuple[Time, Event]]:
    """Return H@f: the events of a history whose times are within a frontier, in their order."""
    return [(time, event) for time, event in history if frontier.contains(*time)]


def deliverable(queue: Sequence[Time]) -> list[int]:
    """Return the places in a queue that may be worked on next: no earlier time waits before them.

    The re-ordering that selective rollback asks of a processor.
    """
    bounds = [canonical(time) for time in queue]
    return [at for at, bound in enumerate(bounds) if all(bound < other for other in bounds[:at])]
