"""What the page shows, at one place: the job's facts, the latest look, points, events.

A board is filled by one thread (`keeper.py`, or a recording that is read once) and read by all
clients. A look is encoded once, however many clients there are.

A client has a cursor: the board's run, and the newest point and event that it has got. With its
cursor it gets only what is new; after a reconnect it gets all that it missed; with the cursor of
another run (the job's process was started again) it begins anew.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from ..observation.observed import CheckpointObserved, Event, Observation
from .facts import JobFacts
from .history import History, Point, point_of

#: Events and checkpoints that are shown.
EVENTS_MAX = 500
CHECKPOINTS_MAX = 60

_CURSOR = re.compile(r"([0-9a-f]{8})\.([0-9]{1,15})\.([0-9]{1,15})")


class Message(msgspec.Struct, frozen=True):
    """What a client gets at once.

    Attributes:
        reset: the client forgets what it had: points and events are all there are.
        recorded: the job does not run; all this was read from its checkpoint directory.
        ended: nothing follows.
    """

    run: str
    reset: bool
    recorded: bool
    ended: bool
    look: msgspec.Raw | None
    points: list[Point]
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a client has got."""

    run: str = ""
    at_ms: int = 0
    event: int = 0

    def __str__(self) -> str:
        return f"{self.run}.{self.at_ms}.{self.event}"

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        """Read a client's word; whatever is no cursor is an empty one."""
        match = _CURSOR.fullmatch(text or "")
        return cls() if match is None else cls(match[1], int(match[2]), int(match[3]))


class Board:
    """The state of the page. Thread-safe."""

    def __init__(
        self,
        facts: JobFacts,
        points: Iterable[Point] = (),
        events: Iterable[Event] = (),
        checkpoints: Iterable[CheckpointObserved] = (),
        *,
        recorded: bool = False,
    ) -> None:
        self.facts = facts
        self.recorded = recorded
        self._run = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._history = History(points)
        self._events: deque[Event] = deque(events, maxlen=EVENTS_MAX)
        #: {number: the checkpoint with its subtasks}, oldest first.
        self._checkpoints = {c.checkpoint: c for c in checkpoints}
        self._look: Observation | None = None
        self._encoded: msgspec.Raw | None = None
        self._ended = recorded
        self._listeners: set[Callable[[], None]] = set()

    @property
    def look(self) -> Observation | None:
        """The latest look; None: there was none yet."""
        return self._look

    @property
    def encoded_look(self) -> bytes:
        """The latest look as JSON; `null`: there was none yet."""
        encoded = self._encoded
        return b"null" if encoded is None else bytes(encoded)

    @property
    def has_ended(self) -> bool:
        """Nothing will change any more."""
        return self._ended

    def show(self, look: Observation, events: Iterable[Event] = ()) -> None:
        """Take a look in, and events that are new."""
        encoded = msgspec.Raw(msgspec.json.encode(look))
        with self._lock:
            self._look, self._encoded = look, encoded
            if not self.recorded:
                self._history.add(point_of(look))
            self._events.extend(events)
        self._tell()

    def detail(self, checkpoint: CheckpointObserved) -> None:
        """Take a checkpoint with its subtasks in."""
        with self._lock:
            self._checkpoints[checkpoint.checkpoint] = checkpoint
            while len(self._checkpoints) > CHECKPOINTS_MAX:
                del self._checkpoints[min(self._checkpoints)]

    def end(self) -> None:
        """Say that nothing follows."""
        self._ended = True
        self._tell()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after each change, in the thread that made it; the answer ends
        that.
        """
        with self._lock:
            self._listeners.add(listener)
        return lambda: self._forget(listener)

    def news(self, cursor: Cursor) -> tuple[Message, Cursor]:
        """Return what a client lacks, and its cursor once it has got that."""
        ended = self._ended  # before the rest: no client may miss what was shown before the end
        with self._lock:
            known = cursor if cursor.run == self._run else Cursor(self._run)
            points = self._history.points(known.at_ms)
            events = [event for event in self._events if event.number > known.event]
            message = Message(
                run=self._run,
                reset=known.at_ms == 0,
                recorded=self.recorded,
                ended=ended,
                look=self._encoded,
                points=points,
                events=events,
            )
        return message, Cursor(
            self._run,
            points[-1].at_ms if points else known.at_ms,
            events[-1].number if events else known.event,
        )

    def points(self) -> list[Point]:
        """Return all points, oldest first."""
        with self._lock:
            return self._history.points()

    def thinned(self) -> list[Point]:
        """Return the points that a recording keeps."""
        with self._lock:
            return list(self._history.thinned())

    def events(self, since: int = 0) -> list[Event]:
        """Return the events after number `since`, oldest first."""
        with self._lock:
            return [event for event in self._events if event.number > since]

    def checkpoint(self, number: int) -> CheckpointObserved | None:
        """Return a checkpoint with its subtasks, as far as they are known; None: none is."""
        with self._lock:
            if number in self._checkpoints:
                return self._checkpoints[number]
            shown = [] if self._look is None else self._look.checkpoints
            return next((c for c in shown if c.checkpoint == number), None)

    def detailed_checkpoints(self) -> list[CheckpointObserved]:
        """Return the checkpoints whose subtasks are known, oldest first."""
        with self._lock:
            return [self._checkpoints[number] for number in sorted(self._checkpoints)]

    def _forget(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
