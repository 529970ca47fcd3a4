"""The thread that looks at a running job once a second, keeps the board up to date, and records it.

One look serves all clients, the history and the recording. Storage that refuses a recording costs
the job nothing: a warning says so once, and the next recording is tried in its turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.recovery.layout import history_path
from headrace.recovery.store import Store, StoreError

from ..contract.errors import HeadraceError
from ..contract.outcomes import JobResult
from ..coordinator.rules import Phase
from ..drivers.status import Status
from ..observation.checkpoints import complete_one
from ..observation.observed import Event, Observation
from .board import Board
from .durations import Durations
from .recording import encode

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
RECORD_EVERY_S = 10.0
#: A job that has ended is looked at until its looks say so.
_LAST_LOOKS = 10
_LAST_LOOK_EVERY_S = 0.1


class Observed(Protocol):
    """What is looked at: a `JobHandle`."""

    @property
    def name(self) -> str: ...
    def observe(self) -> Observation: ...
    def events(self, since: int) -> list[Event]: ...
    def status(self) -> Status: ...
    def wait(self, timeout_s: float | None = None) -> JobResult: ...


class Keeper:
    """Keeps a board, until the job has ended or `close` is called.

    Args:
        store: where recordings go; None: nothing is recorded.
        ended: called in the keeper's thread after the job's end was shown and recorded.
    """

    def __init__(
        self,
        job: Observed,
        board: Board,
        durations: Durations,
        store: Store | None,
        ended: Callable[[], None],
    ) -> None:
        self._job = job
        self._board = board
        self._durations = durations
        self._store = store
        self._ended = ended
        self._told = 0
        #: The newest checkpoint whose parts the board has.
        self._detailed = -1
        self._recorded_s = time.monotonic()
        self._warned = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"page-{job.name}", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look a last time, record that, and end."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and not self._ends_within(LOOK_EVERY_S):
                self._try_to_look()
                if time.monotonic() - self._recorded_s >= RECORD_EVERY_S:
                    self._record()
            self._last_look()
            self._board.end()
            self._record()
        except Exception:
            _log.exception("the page of job %r broke", self._job.name)
        finally:
            self._board.end()
            self._ended()

    def _try_to_look(self) -> None:
        """Look; a look that breaks leaves a gap, and the page goes on."""
        try:
            self._look()
        except Exception:
            _log.exception("a look at job %r broke", self._job.name)

    def _last_look(self) -> None:
        """Look until the look is one of the end: callers share looks for half a second."""
        for _ in range(_LAST_LOOKS):
            self._look()
            look = self._board.look
            if self._closing.is_set() or look is None or look.phase == Phase.ENDED.value:
                return
            time.sleep(_LAST_LOOK_EVERY_S)

    def _look(self) -> None:
        status = self._job.status()
        self._durations.take(status)
        events = self._job.events(self._told)
        if events:
            self._told = events[-1].number
        look = self._job.observe()
        # Complete checkpoints have a place of their own, and would crowd out all other events.
        self._board.show(look, [event for event in events if event.kind != "checkpoint"])
        for metadata in status.checkpoints:
            if metadata.checkpoint > self._detailed:
                self._detailed = metadata.checkpoint
                self._board.detail(complete_one(metadata, look.tasks))

    def _ends_within(self, timeout_s: float) -> bool:
        """Wait for the job's end: it is the pace of looks, and no end is seen late."""
        try:
            self._job.wait(timeout_s)
        except TimeoutError:
            return False
        except HeadraceError:
            return True
        return True

    def _record(self) -> None:
        self._recorded_s = time.monotonic()
        if self._store is None:
            return
        try:
            self._store.put(history_path(self._job.name), encode(self._board))
        except StoreError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            _log.log(level, "the history of job %r is not recorded: %s", self._job.name, error)
            self._warned = True
