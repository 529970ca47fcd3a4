"""The line between a command and a job: a blocking socket, a mutual handshake, then frames.

Both ends prove that they know the job's control secret; the frames are sealed with the keys that
the handshake yields (`channels/handshake.py`, `channels/wire.py`). Every wait has an end, and a
length is believed only after its MAC and up to a limit.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

import pyarrow as pa

from headrace.channels.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    ClientHandshake,
    HandshakeError,
    Identity,
    ServerHandshake,
    Session,
)
from headrace.channels.wire import (
    HEADER_BYTES,
    ControlFrame,
    FrameDecoder,
    FrameEncoder,
    WireError,
)

from .messages import MESSAGE_BYTES_MAX

#: How long a handshake may take.
HANDSHAKE_S = 5.0

#: How long the other end may take to make room for a message.
_SEND_S = 5.0


class LineBroken(Exception):
    """The other end is gone, silent, or not the expected one; the message says which."""


class Line:
    """An open line; either end sends and receives whole messages. Used by one thread."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self._socket = sock
        self._encoder = FrameEncoder(session.send_key, frame_bytes_max=MESSAGE_BYTES_MAX)
        self._decoder = FrameDecoder(
            session.receive_key, _no_schema, frame_bytes_max=MESSAGE_BYTES_MAX
        )

    def send(self, body: bytes) -> None:
        """Send a message. Raises: LineBroken."""
        self._socket.settimeout(_SEND_S)
        try:
            self._socket.sendall(b"".join(self._encoder.encode(ControlFrame(body))))
        except OSError as error:
            raise LineBroken(f"it cannot be reached any more: {error}") from error
        except WireError as error:
            raise LineBroken(f"the message cannot be sent: {error}") from error

    def receive(self, timeout_s: float) -> bytes:
        """Wait for a message, all of which has come within `timeout_s`. Raises: LineBroken."""
        deadline_s = time.monotonic() + timeout_s
        try:
            fields = _exactly(self._socket, HEADER_BYTES, deadline_s)
            header = self._decoder.header(memoryview(fields))
            body = _exactly(self._socket, header.body_bytes, deadline_s)
            frame = self._decoder.frame(header, pa.py_buffer(body))
        except WireError as error:
            raise LineBroken(f"what came over the line is no message: {error}") from error
        if not isinstance(frame, ControlFrame):
            raise LineBroken("what came over the line is not for it")
        return frame.body

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def dial(address: tuple[str, int], secret: bytes, job: str) -> Line:
    """Connect to the process that runs `job`, and have it prove its identity.

    Raises: LineBroken.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    try:
        sock = socket.create_connection(address, timeout=HANDSHAKE_S)
    except OSError as error:
        raise LineBroken(f"nobody answers at {address[0]}:{address[1]}: {error}") from error
    try:
        identity = Identity(job, "controller", os.getpid(), 0, 0)
        handshake = ClientHandshake(
            secret, identity, secrets.token_bytes(NONCE_BYTES), lambda p: p.role == "coordinator"
        )
        sock.sendall(handshake.hello())
        proof, session = handshake.challenged(_exactly(sock, CHALLENGE_BYTES, deadline_s))
        sock.sendall(proof)
        return Line(sock, session)
    except (OSError, HandshakeError, LineBroken) as error:
        sock.close()
        raise LineBroken(f"{address[0]}:{address[1]} is not the job's process: {error}") from error


def answer(sock: socket.socket, secret: bytes, job: str) -> Line:
    """Let a peer in that knows the secret. Raises: LineBroken; the socket stays the caller's."""
    deadline_s = time.monotonic() + HANDSHAKE_S
    try:
        sock.settimeout(HANDSHAKE_S)
        handshake = ServerHandshake(
            secret,
            Identity(job, "coordinator", 0, 0, 0),
            secrets.token_bytes(NONCE_BYTES),
            lambda peer: peer.role == "controller",
        )
        sock.sendall(handshake.greeted(_exactly(sock, HELLO_BYTES, deadline_s)))
        return Line(sock, handshake.proven(_exactly(sock, PROOF_BYTES, deadline_s)))
    except (OSError, HandshakeError, LineBroken) as error:
        raise LineBroken(f"a stranger called: {error}") from error


def _exactly(sock: socket.socket, count: int, deadline_s: float) -> bytes:
    """Read `count` bytes by the deadline, which a byte now and then does not prolong."""
    data = bytearray()
    while len(data) < count:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise LineBroken("it is too slow")
        sock.settimeout(left_s)
        try:
            part = sock.recv(count - len(data))
        except TimeoutError:
            raise LineBroken("it is silent") from None
        except OSError as error:
            raise LineBroken(f"the line broke: {error}") from error
        if not part:
            raise LineBroken("it hung up")
        data += part
    return bytes(data)


def _no_schema(edge: int) -> object:
    raise LookupError(edge)
