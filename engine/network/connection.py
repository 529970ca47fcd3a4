"""One connection, seen from the network thread: handshake, then frames, without ever blocking.

`FrameReader` reads large bodies straight to their final buffers and all other bytes through a small
staging area: one system call brings many small frames, and no large frame is copied twice.
`FrameWriter` encodes only the frames that the socket is about to take: a waiting frame costs no
bytes, many small frames leave in one call, and a barrier passes data that is not encoded yet
(`channels/outbox.py`). Few and large calls matter more than their cost suggests, because each call
gives the GIL away and has to win it back.

A connection moves through its phases in one direction and knows nothing of selectors, ids or other
connections. Every fault is a `ConnectionLost` with a reason for a person to read. The network keeps
the deadlines.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Final

import pyarrow as pa

from headrace.channels.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    ClientHandshake,
    HandshakeError,
    Identity,
    ServerHandshake,
    Session,
)
from headrace.channels.outbox import Outbox
from headrace.channels.wire import (
    HEADER_BYTES,
    BufferFrame,
    Frame,
    FrameDecoder,
    FrameEncoder,
    FrameHeader,
    WireError,
)

from .same_host import is_local

#: Asked of the kernel for each direction of a connection.
SOCKET_BUFFER_BYTES: Final = 1024 * 1024
#: Bytes that the kernel keeps for a network that is busy: a barrier waits for all of them.
UNSENT_BYTES: Final = 128 * 1024

#: Frames that wait for a peer that does not read. Credit bounds the data far below; a peer at this
#: limit is lost.
OUTBOX_FRAMES_MAX: Final = 262_144

#: Buffers sent before the sender is told; less than the least room of a connection.
REPORT_BYTES: Final = 128 * 1024

_STAGING_BYTES: Final = 64 * 1024
#: Soft limit on the bytes that one connection reads or writes before the others get a turn.
_TURN_BYTES: Final = 4 * 1024 * 1024
#: Encoded ahead of the socket; soft, by one frame. A barrier cannot pass encoded frames.
_AHEAD_BYTES: Final = 128 * 1024
#: Pieces in one sendmsg; the limit of Linux is 1,024.
_PIECES_MAX: Final = 512
#: A peer whose machine is silent is lost after this long, whatever is queued for it.
SILENCE_SECONDS: Final = 30
#: Of Linux's `struct tcp_info`: unanswered probes, segments not acknowledged, milliseconds since
#: the last answer.
_TCP_INFO: Final = struct.Struct("=3xB20xI28xI")
#: The first probes may still be answered.
_PROBES_MAX: Final = 3


class ConnectionLost(Exception):
    """The connection is of no more use; the message says why."""


class Phase(Enum):
    """Where a connection stands."""

    #: Ours: the socket is not connected yet.
    CONNECTING = "connecting"
    #: Waits for a message of the handshake.
    GREETING = "greeting"
    #: Frames go both ways.
    OPEN = "open"
    #: We have closed: queued frames leave, and we receive no more.
    CLOSING = "closing"


class FrameReader:
    """Frames out of a socket."""

    def __init__(self, sock: socket.socket, decoder: FrameDecoder) -> None:
        self._socket = sock
        self._decoder = decoder
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        #: Bytes [start, end) of the staging area belong to frames not decoded yet; empty while a
        #: body is incomplete.
        self._start = 0
        self._end = 0
        self._header: FrameHeader | None = None
        self._body: pa.Buffer = None
        #: The part of the body that has not arrived.
        self._missing = memoryview(b"")

    def receive(self, frames: list[Frame]) -> int:
        """Read once and append the frames that are complete now.

        Returns the number of bytes read, negative if the socket has no more for now. Frames
        appended before an error are good.

        Raises: ConnectionLost at the end of the stream, WireError, OSError.
        """
        missing = len(self._missing)
        try:
            if missing:
                wanted = missing + _STAGING_BYTES
                count = self._socket.recvmsg_into([self._missing, self._staging])[0]
            else:
                wanted = _STAGING_BYTES - self._end
                count = self._socket.recv_into(self._staging[self._end :])
        except BlockingIOError:
            return -1
        if count == 0:
            inside = self._header is not None or self._end > self._start
            raise ConnectionLost("closed by the peer" + (" within a frame" if inside else ""))
        if missing:
            self._missing = self._missing[count:]
            self._end = max(0, count - missing)
        else:
            self._end += count
        self._decode(frames)
        return count if count == wanted else -count

    def _decode(self, frames: list[Frame]) -> None:
        while not self._missing:
            if self._header is not None:
                frames.append(self._decoder.frame(self._header, self._body))
                self._header = self._body = None
            if self._end - self._start < HEADER_BYTES:
                break
            body_start = self._start + HEADER_BYTES
            self._header = self._decoder.header(self._staging[self._start : body_start])
            self._start = body_start
            self._begin_body(self._header.body_bytes)
        self._compact()

    def _begin_body(self, size_bytes: int) -> None:
        self._body = pa.allocate_buffer(size_bytes)
        body = memoryview(self._body).cast("B")
        staged = min(size_bytes, self._end - self._start)
        body[:staged] = self._staging[self._start : self._start + staged]
        self._start += staged
        self._missing = body[staged:]

    def _compact(self) -> None:
        """Move the remaining bytes, always less than one header, to the front."""
        left = self._end - self._start
        assert left < HEADER_BYTES, f"{left} bytes not decoded"
        if left:
            self._staging[:left] = bytes(self._staging[self._start : self._end])
        self._start, self._end = 0, left


class FrameWriter:
    """Frames into a socket."""

    def __init__(self, sock: socket.socket, outbox: Outbox | None = None) -> None:
        """`outbox`: frames that wait already, and others that join them."""
        self._socket = sock
        self._encoder: FrameEncoder | None = None
        self.outbox = Outbox() if outbox is None else outbox
        #: Encoded bytes not yet sent, and how many they are.
        self._pieces: deque[bytes | memoryview] = deque()
        self._ahead_bytes = 0
        #: Of buffers that are encoded and not sent: end in the stream, and size.
        self._ends: deque[tuple[int, int]] = deque()
        self._encoded_bytes = 0
        #: Size of buffers sent, and not told by `tell`.
        self.untold_bytes = 0
        self.sent_bytes = 0
        self.sent_frames = 0

    def open(self, encoder: FrameEncoder) -> None:
        """Begin to send; frames may have been queued before."""
        self._encoder = encoder

    def queue(self, frame: Frame) -> None:
        """Add a frame for `flush` to send. Raises: ConnectionLost if the peer has let too many
        wait.
        """
        if len(self.outbox) >= OUTBOX_FRAMES_MAX:
            raise ConnectionLost(f"the peer let {OUTBOX_FRAMES_MAX} frames wait")
        self.outbox.put(frame)

    def flush(self) -> bool:
        """Send until the queue is empty, the socket is full or the turn is over; True: the queue is
        empty.

        Raises: WireError, OSError.
        """
        turn_end = self.sent_bytes + _TURN_BYTES
        while True:
            self._encode_ahead()
            if not self._pieces:
                return True
            if self.sent_bytes >= turn_end:
                return False
            try:
                count = self._socket.sendmsg(islice(self._pieces, _PIECES_MAX))
            except BlockingIOError:
                return False
            self._sent(count)

    def tell(self) -> int:
        """Return the size of buffers sent since the last call."""
        told_bytes, self.untold_bytes = self.untold_bytes, 0
        return told_bytes

    @property
    def is_dry(self) -> bool:
        """Nothing waits for the socket."""
        return not self._pieces and not len(self.outbox)

    def _encode_ahead(self) -> None:
        if self._encoder is None:
            return
        while self._ahead_bytes < _AHEAD_BYTES and len(self._pieces) < _PIECES_MAX:
            frame = self.outbox.take()
            if frame is None:
                return
            for piece in self._encoder.encode(frame):
                self._pieces.append(piece)
                self._ahead_bytes += len(piece)
                self._encoded_bytes += len(piece)
            if isinstance(frame, BufferFrame):
                self._ends.append((self._encoded_bytes, frame.buffer.size_bytes))
            self.sent_frames += 1

    def _sent(self, count: int) -> None:
        self.sent_bytes += count
        self._ahead_bytes -= count
        while self._ends and self._ends[0][0] <= self.sent_bytes:
            self.untold_bytes += self._ends.popleft()[1]
        while count:
            piece = self._pieces.popleft()
            if count < len(piece):
                self._pieces.appendleft(memoryview(piece)[count:])
                return
            count -= len(piece)


class Connection:
    """One connection from its first byte to its last.

    Every method may raise ConnectionLost, WireError, HandshakeError or OSError; after an error only
    `shut` may be called.
    """

    def __init__(
        self,
        sock: socket.socket,
        handshake: ClientHandshake | ServerHandshake,
        schemas: Callable[[int], pa.Schema],
        outbox: Outbox | None = None,
    ) -> None:
        """Take over a non-blocking socket: just accepted, or connecting."""
        self.socket = sock
        self.peer: Identity | None = None
        #: Something waits until the socket takes more; kept by the network for its selector.
        self.blocked = False
        self.writer = FrameWriter(sock, outbox)
        self._reader: FrameReader | None = None
        self._schemas = schemas
        self._handshake = handshake
        self._greeting = bytearray()
        self._sent_shutdown = False
        self._greeting_bytes = HELLO_BYTES
        self.phase = Phase.GREETING
        if isinstance(handshake, ClientHandshake):
            self._greeting_bytes = CHALLENGE_BYTES
            self.phase = Phase.CONNECTING

    def connected(self) -> None:
        """The socket is connected, or failed: say hello."""
        assert isinstance(self._handshake, ClientHandshake), "only a client connects"
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise ConnectionLost(f"cannot connect: {os.strerror(error)}")
        self.phase = Phase.GREETING
        self._say(self._handshake.hello())

    def receive(self, frames: list[Frame]) -> int:
        """Read available bytes, at most one turn, and append the frames. Returns the number of
        bytes.
        """
        match self.phase:
            case Phase.GREETING:
                return self._receive_greeting()
            case Phase.OPEN:
                return self._receive_frames(frames)
            case Phase.CLOSING:
                return self._discard()
            case Phase.CONNECTING:
                return 0

    def flush(self) -> bool:
        """Send queued frames, at most one turn; True: none is left, or none may be sent yet."""
        if self.phase not in (Phase.OPEN, Phase.CLOSING):
            return True
        done = self.writer.flush()
        if done and self.phase is Phase.CLOSING and not self._sent_shutdown:
            # Not closed at once: what the peer still sends would be answered by a reset, which
            # may overtake our last frames.
            self.socket.shutdown(socket.SHUT_WR)
            self._sent_shutdown = True
        return done

    def close_gently(self) -> bool:
        """Receive no more, send the queued frames, then end. False before the handshake is over:
        `shut` the connection.
        """
        if self.phase is not Phase.OPEN:
            return False
        self.phase = Phase.CLOSING
        return True

    def shut(self) -> None:
        """Give the socket back."""
        self.socket.close()

    def _receive_frames(self, frames: list[Frame]) -> int:
        assert self._reader is not None, "an open connection has a reader"
        total = 0
        while total < _TURN_BYTES:
            count = self._reader.receive(frames)
            total += abs(count)
            if count < 0:
                break
        return total

    def _discard(self) -> int:
        try:
            data = self.socket.recv(_STAGING_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise ConnectionLost("closed here")
        return len(data)

    def _receive_greeting(self) -> int:
        """Read the message and not a byte more: frames may follow."""
        try:
            data = self.socket.recv(self._greeting_bytes - len(self._greeting))
        except BlockingIOError:
            return 0
        if not data:
            raise ConnectionLost("closed by the peer during the handshake")
        self._greeting += data
        if len(self._greeting) == self._greeting_bytes:
            message = bytes(self._greeting)
            self._greeting.clear()
            self._greeted(message)
        return len(data)

    def _greeted(self, message: bytes) -> None:
        if isinstance(self._handshake, ClientHandshake):
            proof, session = self._handshake.challenged(message)
            self._say(proof)
            self._open(session)
        elif self._greeting_bytes == HELLO_BYTES:
            self._say(self._handshake.greeted(message))
            self._greeting_bytes = PROOF_BYTES
        else:
            self._open(self._handshake.proven(message))

    def _open(self, session: Session) -> None:
        self.peer = session.peer
        self.writer.open(FrameEncoder(session.send_key))
        self._reader = FrameReader(self.socket, FrameDecoder(session.receive_key, self._schemas))
        self.phase = Phase.OPEN

    def _say(self, message: bytes) -> None:
        # The buffer of a fresh socket holds every handshake message; a short send is a broken peer.
        if self.socket.send(message) != len(message):
            raise ConnectionLost("the peer does not read")


def prepare(sock: socket.socket) -> None:
    """Set the options of a connection: no blocking, large buffers; over TCP no delay, little that
    is unsent, dead peers noticed.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    if is_local(sock):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_SECONDS // 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_SECONDS // 6)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        # Not TCP_USER_TIMEOUT: it would also end the connection to a peer whose machine answers
        # that its process reads nothing for now. See `is_unanswered`.


def is_unanswered(sock: socket.socket) -> bool:
    """Whether the peer's machine has left what we sent without an answer for too long; Linux."""
    if sys.platform != "linux" or is_local(sock):
        return False
    return _tells_silence(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))


def _tells_silence(info: bytes) -> bool:
    """Read the kernel's account of a connection.

    A machine that is gone acknowledges neither data nor probes. One whose process does not read
    acknowledges both, and says that it has no room.
    """
    probes, unacknowledged, answered_ms = _TCP_INFO.unpack(info)
    silent = answered_ms > SILENCE_SECONDS * 1_000
    return bool(silent and (unacknowledged or probes >= _PROBES_MAX))


def reason_of(error: Exception) -> str:
    """Return the reason why a connection ended, for the log."""
    match error:
        case WireError() | ConnectionLost():
            return str(error)
        case HandshakeError():
            return f"handshake refused: {error}"
        case OSError() if error.strerror:
            return error.strerror
        case _:
            return repr(error)
