"""The control endpoint of a running job: listens on loopback, lets in who knows the secret, and
does what is asked, one request at a time.

It lives as long as the job. A second request while one is carried out is refused, except to look at
the job or to stop at once. If the endpoint cannot be opened the job runs all the same, and a
warning says so.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Protocol, assert_never

import msgspec

from ..contract.errors import HeadraceError, JobFailed
from ..contract.outcomes import JobResult, Rescaled
from ..observation.observed import Observation
from . import messages as m
from .folder import NotOurs, publish, run_folder, withdraw
from .line import Line, LineBroken, answer

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_SECRET_BYTES = 32
#: How often it is looked whether the job has ended.
_LOOK_EVERY_S = 0.5
#: How long a caller may take to say what it wants.
_REQUEST_S = 10.0
WORKING_EVERY_S = 1.0
#: How long the end of the process waits for answers to be sent.
_ANSWERS_S = 2.0
#: Callers that have not proven that they know the secret; a newcomer takes the oldest one's place.
_STRANGERS_MAX = 64


class Controlled(Protocol):
    """What is controlled: a `JobHandle`."""

    @property
    def name(self) -> str: ...
    def rescale(self, parallelism: int) -> Rescaled: ...
    def savepoint(self, path: str | None = None, mode: str | None = None) -> str: ...
    def stop(self) -> None: ...
    def stop_with_savepoint(
        self, path: str | None = None, mode: str | None = None, *, drain: bool = False
    ) -> str: ...
    def drain(self) -> None: ...
    def cancel(self) -> None: ...
    def observe(self) -> Observation: ...
    def wait(self, timeout_s: float | None = None) -> JobResult: ...


class ControlEndpoint:
    """Answers requests to one job until it has ended."""

    def __init__(self, handle: Controlled, folder: Path) -> None:
        """Open the endpoint. Raises: OSError, NotOurs."""
        self._handle = handle
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._socket = socket.create_server((_HOST, 0))
        try:
            port = self._socket.getsockname()[1]
            self._file = publish(folder, handle.name, _HOST, port, self._secret)
        except BaseException:
            self._socket.close()
            raise
        # Ends the wait of a peer before this thread has seen that the job has ended.
        atexit.register(self._withdraw)
        self._attending: set[threading.Thread] = set()
        self._busy = threading.Lock()
        self._strangers = _Strangers()
        name = f"control-{handle.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._socket.settimeout(_LOOK_EVERY_S)
        try:
            while not _has_ended(self._handle):
                self._await_caller()
        except Exception:
            _log.exception("the control endpoint of job %r broke", self._handle.name)
        finally:
            self._socket.close()
            self._withdraw()
            atexit.unregister(self._withdraw)

    def _await_caller(self) -> None:
        """Let in whoever calls within the time of a look.

        One who has gone, or for whom there is no descriptor, is not the end.
        """
        try:
            self._accept(self._socket.accept()[0])
        except TimeoutError:
            pass
        except OSError as error:
            _log.warning("a caller of job %r was not let in: %s", self._handle.name, error)
            time.sleep(_LOOK_EVERY_S)

    def _withdraw(self) -> None:
        """Be found no longer, and let those who asked have their answers: that a job has stopped is
        told when it has.
        """
        withdraw(self._file)
        deadline_s = time.monotonic() + _ANSWERS_S
        for thread in list(self._attending):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _accept(self, caller: socket.socket) -> None:
        self._strangers.add(caller)
        thread = threading.Thread(
            target=self._attend, args=(caller,), name="control-caller", daemon=True
        )
        self._attending.add(thread)
        thread.start()

    def _attend(self, caller: socket.socket) -> None:
        try:
            try:
                line = answer(caller, self._secret, self._handle.name)
            finally:
                self._strangers.remove(caller)
            try:
                self._serve(line, m.decode_request(line.receive(_REQUEST_S)))
            except msgspec.MsgspecError as error:
                line.send(m.encode(m.Refused(f"no request: {error}", 2)))
        except LineBroken as reason:
            _log.info("control of job %r: %s", self._handle.name, reason)
        finally:
            caller.close()
            self._attending.discard(threading.current_thread())

    def _serve(self, line: Line, request: m.Request) -> None:
        """Carry the request out and answer.

        A peer that hangs up earlier does not undo the request.
        """
        at_once = isinstance(request, m.Look) or (isinstance(request, m.Stop) and request.now)
        if not at_once and not self._busy.acquire(blocking=False):
            line.send(m.encode(m.Refused("another request is being carried out; ask again", 1)))
            return
        outcome: Future[m.Done | m.Refused] = Future()

        def work() -> None:
            try:
                outcome.set_result(_do(self._handle, request))
            finally:
                if not at_once:
                    self._busy.release()

        threading.Thread(target=work, name="control-request", daemon=True).start()
        while True:
            try:
                done = outcome.result(WORKING_EVERY_S)
            except FutureTimeout:
                line.send(m.encode(m.Working()))
            else:
                line.send(m.encode(done))
                return


class _Strangers:
    """Sockets of callers that have proven nothing yet, oldest first.

    Silent callers cannot keep the owner out: a newcomer ends the oldest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[socket.socket, None] = {}

    def add(self, caller: socket.socket) -> None:
        with self._lock:
            if len(self._sockets) >= _STRANGERS_MAX:
                oldest = next(iter(self._sockets))
                del self._sockets[oldest]
                # Not closed: its thread, which this wakes, may be reading from it.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._sockets[caller] = None

    def remove(self, caller: socket.socket) -> None:
        """Forget a caller, before its socket may be closed."""
        with self._lock:
            self._sockets.pop(caller, None)


def open_control(handle: Controlled) -> None:
    """Make the job reachable for the commands of other processes, if possible."""
    try:
        ControlEndpoint(handle, run_folder())
    except (OSError, NotOurs) as reason:
        _log.warning("job %r cannot be controlled from elsewhere: %s", handle.name, reason)


def _do(handle: Controlled, request: m.Request) -> m.Done | m.Refused:
    try:
        match request:
            case m.Rescale():
                done = handle.rescale(request.parallelism)
                return m.RescaleDone(
                    done.parallelism,
                    done.checkpoint,
                    done.stop_ns,
                    done.duration_ns,
                    done.standstill_ns,
                )
            case m.Stop():
                return _stop(handle, request)
            case m.Look():
                return m.Looked(handle.observe())
            case m.Savepoint():
                return m.SavepointDone(handle.savepoint(request.path, request.mode))
            case _:
                assert_never(request)
    except HeadraceError as error:
        return m.Refused(str(error)[: m.REASON_CHARS_MAX], error.exit_code)
    except Exception as error:
        _log.exception("a request to job %r broke", handle.name)
        return m.Refused(f"it broke: {error!r}"[: m.REASON_CHARS_MAX], 1)


def _ending(handle: Controlled, request: m.Stop) -> Callable[[], None]:
    if request.now:
        return handle.cancel
    return handle.drain if request.drain else handle.stop


def _stop(handle: Controlled, request: m.Stop) -> m.StopDone:
    savepoint = None
    if request.savepoint is not None and not request.now:
        savepoint = handle.stop_with_savepoint(request.savepoint, request.mode, drain=request.drain)
    else:
        _ending(handle, request)()
    result = handle.wait()
    return m.StopDone(result.last_checkpoint, result.outcome == "finished", savepoint)


def _has_ended(handle: Controlled) -> bool:
    try:
        handle.wait(0.0)
    except TimeoutError:
        return False
    except JobFailed:
        return True
    return True
