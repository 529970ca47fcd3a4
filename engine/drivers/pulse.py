"""The pulse of a worker: messages to the coordinator that the worker's process lives, sent by its
companion while user code may hold the worker's GIL.

The worker's owner thread is the measure. It has to send a heartbeat now and then; as long as it
runs, or asks for the GIL, the worker lives. It does neither in a stopped process or in a deadlock,
and then there is no pulse.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from dataclasses import dataclass

from headrace.channels.handshake import (
    CHALLENGE_BYTES,
    NONCE_BYTES,
    ClientHandshake,
    HandshakeError,
    Identity,
)
from headrace.channels.wire import ControlFrame, FrameEncoder

from ..contract import messages as m
from ..network.connection import prepare
from .call_board import CallBoard
from .thread_states import ThreadLook, has_moved, look_at, waits_for_gil

#: For each step of a connection's beginning.
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Pulsed:
    """The worker whose pulse is sent.

    Attributes:
        coordinator: its host and port.
        owner: the process, and its main thread, which steps the worker's machine.
    """

    identity: Identity
    secret: bytes
    coordinator: tuple[str, int]
    owner: int
    calls: CallBoard


class Pulse:
    """Sends the pulse, over a connection that is made again when it breaks."""

    def __init__(self, worker: Pulsed) -> None:
        self._worker = worker
        self._line: _Line | None = None
        self._looks: dict[int, ThreadLook | None] = {}
        self._looked_s = time.monotonic()

    def beat(self) -> None:
        """Look at the worker; tell the coordinator if it lives."""
        worker = self._worker
        before, elapsed_s = self._look()
        if not has_moved(before.get(worker.owner), self._looks[worker.owner]):
            return
        calls = [
            held.call
            for held in worker.calls.under_way()
            if not waits_for_gil(before.get(held.thread), self._looks.get(held.thread), elapsed_s)
        ]
        try:
            if self._line is None:
                self._line = _Line(worker)
            identity = worker.identity
            self._line.send(m.Pulse(identity.worker, identity.incarnation, calls))
        except (OSError, HandshakeError):
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _look(self) -> tuple[dict[int, ThreadLook | None], float]:
        """Look at the threads that matter; return the looks before, and the time since."""
        owner, now_s = self._worker.owner, time.monotonic()
        threads = {owner, *(held.thread for held in self._worker.calls.under_way())}
        before, elapsed_s = self._looks, now_s - self._looked_s
        self._looks = {thread: look_at(owner, thread) for thread in threads}
        self._looked_s = now_s
        return before, elapsed_s


class _Line:
    """An authenticated connection to the coordinator, which says nothing back."""

    def __init__(self, worker: Pulsed) -> None:
        self._socket = socket.create_connection(worker.coordinator, _PATIENCE_S)
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            handshake = ClientHandshake(
                worker.secret, worker.identity, nonce, lambda peer: peer.role == "coordinator"
            )
            self._socket.sendall(handshake.hello())
            proof, session = handshake.challenged(self._read(CHALLENGE_BYTES))
            self._socket.sendall(proof)
            self._encoder = FrameEncoder(session.send_key)
            # Never wait for a coordinator that does not read.
            prepare(self._socket)
        except BaseException:
            self._socket.close()
            raise

    def send(self, message: m.Pulse) -> None:
        """Send a message. Raises: OSError."""
        with contextlib.suppress(BlockingIOError):
            if not self._socket.recv(1):
                raise ConnectionResetError("the coordinator has closed")
        frame = b"".join(self._encoder.encode(ControlFrame(m.encode(message))))
        if self._socket.send(frame) != len(frame):
            raise BlockingIOError("the coordinator does not read")

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("the coordinator has closed")
            parts += part
        return parts
