"""The page of a job: of a running one, and of what a checkpoint directory remembers of one."""

from __future__ import annotations

import atexit
import logging
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from headrace.recovery.layout import history_path, parse_history_path
from headrace.recovery.store import NotFound, Store, StoreError

from ..contract.errors import UserError
from ..contract.page_address import PageAddress
from .board import Board
from .durations import Durations
from .facts import JobFacts
from .keeper import Keeper, Observed
from .orders import Controlled, Desk
from .recording import BYTES_MAX, Recording, Unreadable, decode
from .server import Server, bind, url_of

_log = logging.getLogger(__name__)


class Job(Observed, Controlled, Protocol):
    """A running job: a `JobHandle`."""

    def metrics(self) -> Mapping[str, float]: ...


class Place:
    """A bound socket and a token: a page before its job runs."""

    def __init__(self, address: PageAddress) -> None:
        """Take the place. Raises: UserError without the extra; AddressUnreachable."""
        from .guard import new_token

        self.socket: socket.socket = bind(address)
        self.host = address.host
        self.token = new_token()

    @property
    def link(self) -> str:
        """The address with the token behind `#`, which browsers keep to themselves."""
        return f"{url_of(self.socket)}#token={self.token}"

    def leave(self) -> None:
        """Give the place up: the job does not start."""
        self.socket.close()


class Page:
    """The page of a running job. It ends with the job, or by `close`."""

    def __init__(self, place: Place, job: Job, facts: JobFacts, store: Store | None) -> None:
        from .app import make_app
        from .exposition import exposition

        self.link = place.link
        durations = Durations()
        before = _before(store, facts.job)
        self._board = Board(facts, before.points)
        app = make_app(
            self._board,
            metrics=lambda: exposition(job.name, job.metrics(), durations),
            desk=Desk(job),
            names=[place.host, socket.gethostname()],
            token=place.token,
        )
        self._server = Server(app, place.socket)
        self._keeper = Keeper(job, self._board, durations, store, self._ended)
        self._keeper.start()
        # The last message and the last recording, when the program ends with its job.
        atexit.register(self.close)

    def close(self) -> None:
        """End the page; the job goes on."""
        self._keeper.close()
        self._server.close()

    def _ended(self) -> None:
        self._server.close()
        atexit.unregister(self.close)


def _before(store: Store | None, job: str) -> Recording:
    """Return what an earlier process of the job has recorded; damage is passed over."""
    if store is None:
        return Recording()
    try:
        return decode(store.get(history_path(job), bytes_max=BYTES_MAX))
    except NotFound:
        return Recording()
    except (StoreError, Unreadable) as error:
        _log.warning("the history of job %r is not read: %s", job, error)
        return Recording()


class RecordedPage:
    """The page of a job that does not run, from its checkpoint directory."""

    def __init__(self, place: Place, recording: Recording) -> None:
        from .app import make_app

        self.link = url_of(place.socket)
        assert recording.facts is not None, "a recording without facts is not shown"
        board = Board(
            recording.facts,
            recording.points,
            recording.events,
            recording.checkpoints,
            recorded=True,
        )
        if recording.look is not None:
            board.show(recording.look)
        self._server = Server(make_app(board, names=[place.host]), place.socket)

    def wait(self) -> None:
        """Wait for ever, or for Ctrl-C."""
        with suppress(KeyboardInterrupt):
            threading.Event().wait()

    def close(self) -> None:
        """End the page."""
        self._server.close()


def recorded_jobs(store: Store) -> list[str]:
    """Return the folders of all jobs that have a recording, sorted. Raises: StoreError."""
    return sorted(job for path in store.list("") if (job := parse_history_path(path)) is not None)


def read_recording(store: Store, url: str, job: str) -> Recording:
    """Read what a job's page has recorded.

    Args:
        url: of the checkpoint directory, for errors.
        job: its name, or its folder's.

    Raises: UserError; StoreError.
    """
    advice = "run the job with --ui, and its history is kept"
    try:
        recording = decode(store.get(history_path(job), bytes_max=BYTES_MAX))
    except NotFound:
        raise UserError(f"job {job!r} in {url} has no history; {advice}") from None
    except Unreadable as error:
        raise UserError(f"the history of job {job!r} in {url} is damaged: {error}") from error
    if recording.facts is None:
        raise UserError(f"the history of job {job!r} in {url} is damaged: it lacks the job's facts")
    return recording
