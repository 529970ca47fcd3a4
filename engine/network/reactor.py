"""The reactor: every connection of a process, one selector, one thread, no locks.

The reactor is the part of the network that only the network thread touches. `select` waits for
sockets and handles the ready ones, commands change the table, `finish_round` sends queued frames
and gives up overdue connections; events pile up until `take_events`. `network.py` brings the thread
and the commands of other threads.

A peer that has not proven its identity gets at most a challenge, two seconds and one of few places;
a newcomer takes the place of the oldest, so that slow strangers cannot keep a quick friend out. Not
here: reconnecting, heartbeats, fencing (the `accept` callback decides), credit, TLS.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, NewType

import pyarrow as pa

from headrace.channels.handshake import (
    NONCE_BYTES,
    ClientHandshake,
    HandshakeError,
    Identity,
    ServerHandshake,
)
from headrace.channels.outbox import Outbox
from headrace.channels.wire import Frame, WireError

from .connection import (
    REPORT_BYTES,
    SILENCE_SECONDS,
    Connection,
    ConnectionLost,
    Phase,
    is_unanswered,
    prepare,
    reason_of,
)
from .same_host import connect_beside, is_same_user

ConnectionId = NewType("ConnectionId", int)

#: A numeric address as the socket calls take and give it: host and port first.
SocketAddress = tuple[str, int] | tuple[str, int, int, int]

#: For a handshake, a connection attempt, and the last bytes of a closed connection.
HANDSHAKE_NS: Final = 2_000_000_000
#: Connections of peers that have not proven themselves yet.
HALF_OPEN_MAX: Final = 64
#: How long no connection is accepted after the process ran out of file descriptors.
_ACCEPT_PAUSE_NS: Final = 100_000_000
#: Connections accepted before others get their turn.
_ACCEPTS_A_TURN: Final = 64
#: How often connections are asked for the silence of their peers' machines.
_LOOK_NS: Final = SILENCE_SECONDS * 1_000_000_000 // 6
#: What may be wrong with a connection. Everything else is a bug of ours and ends the thread.
_FAILURES: Final = (ConnectionLost, WireError, HandshakeError, OSError)


@dataclass(frozen=True, slots=True)
class Connected:
    """Both ends have proven themselves; `peer.epoch` is the epoch of the connection."""

    connection: ConnectionId
    peer: Identity


@dataclass(frozen=True, slots=True)
class Received:
    """A frame arrived. Frames of one connection are in order."""

    connection: ConnectionId
    frame: Frame


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The last event of a connection that was Connected or that `connect` returned."""

    connection: ConnectionId
    reason: str


@dataclass(frozen=True, slots=True)
class Took:
    """The socket took buffers of `size_bytes`, as charged to credit; `dry`: none waits for it.

    Told for every `REPORT_BYTES` or more, so the last buffers may stay untold.
    """

    connection: ConnectionId
    size_bytes: int
    dry: bool


NetworkEvent = Connected | Received | Took | Disconnected


@dataclass(frozen=True, slots=True)
class NetworkStatistics:
    """Counts since the start.

    Attributes:
        open: connections now.
        half_open: peers now that have not proven their identity.
        refused: connections that ended before the peer had proven its identity.
        broken: connections closed because of a bad frame.
        last_failure: why the last refused or broken connection ended; empty if none was.
    """

    open: int
    half_open: int
    refused: int
    broken: int
    frames_received: int
    bytes_received: int
    frames_sent: int
    bytes_sent: int
    last_failure: str


class _Target(NamedTuple):
    """A connection of ours as it was asked for."""

    family: socket.AddressFamily
    address: SocketAddress
    epoch: int


class Reactor:
    """The connections of a process. All methods belong to one thread."""

    def __init__(
        self,
        secret: bytes,
        identity: Identity,
        schemas: Callable[[int], pa.Schema],
        accept: Callable[[Identity], bool],
        next_id: Callable[[], ConnectionId],
        *,
        handshake_ns: int,
        half_open_max: int,
    ) -> None:
        """Prepare. For the arguments see `Network`; `next_id` names the connections of others."""
        self._secret = secret
        self._identity = identity
        self._schemas = schemas
        self._accept = accept
        self._next_id = next_id
        self._handshake_ns = handshake_ns
        self._half_open_max = half_open_max
        self._selector = selectors.DefaultSelector()
        self._connections: dict[ConnectionId, Connection] = {}
        #: {connection: when it is given up}, soonest first: the delay is the same for all.
        self._deadlines: dict[ConnectionId, int] = {}
        #: Accepted, not proven, oldest first. A subset of the keys of `_deadlines`.
        self._half_open: dict[ConnectionId, None] = {}
        #: Connections beside TCP that are not open: what they fall back to.
        self._targets: dict[ConnectionId, _Target] = {}
        #: Connections known by id to other threads that have not had their Disconnected.
        self._known: set[ConnectionId] = set()
        #: Connections with something to flush before the round ends; a dict for its order.
        self._dirty: dict[ConnectionId, None] = {}
        self._listeners: list[socket.socket] = []
        self._accept_again_ns: int | None = None
        self._look_ns = time.monotonic_ns() + _LOOK_NS
        self._wakened: socket.socket | None = None
        self._events: list[NetworkEvent] = []
        self._refused = 0
        self._broken = 0
        self._frames_received = 0
        self._bytes_received = 0
        self._frames_sent = 0
        self._bytes_sent = 0
        self._last_failure = ""

    def wake_by(self, wakened: socket.socket) -> None:
        """Let bytes at this non-blocking socket end a `select`. The reactor closes the socket."""
        self._wakened = wakened
        self._selector.register(wakened, selectors.EVENT_READ, wakened)

    def select(self, *, wait: bool) -> None:
        """Handle all ready sockets; with `wait`, sleep until a socket is ready or a deadline has
        come.
        """
        for key, mask in self._selector.select(self._patience() if wait else 0):
            if isinstance(key.data, int):
                self._ready(ConnectionId(key.data), mask)
            elif self._wakened is not None and key.data is self._wakened:
                self._wakened.recv(4096)
            else:
                self._accept_all(key.data)

    def finish_round(self) -> None:
        """Send the frames queued since the last round, and give up overdue connections."""
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            self._flush(connection)
        now_ns = time.monotonic_ns()
        while self._deadlines:
            connection, due_ns = next(iter(self._deadlines.items()))
            if due_ns > now_ns:
                break
            # TCP would lead to the same silent process.
            self._targets.pop(connection, None)
            self._lose(connection, ConnectionLost("no answer in time"))
        if self._look_ns <= now_ns:
            self._look_ns = now_ns + _LOOK_NS
            self._lose_unanswered()
        if self._accept_again_ns is not None and self._accept_again_ns <= now_ns:
            self._accept_again_ns = None
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, listener)

    def take_events(self) -> list[NetworkEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from a listening, non-blocking socket.

        The reactor closes the socket.
        """
        self._listeners.append(listener)
        if self._accept_again_ns is None:
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def connect(
        self,
        connection: ConnectionId,
        family: socket.AddressFamily,
        address: SocketAddress,
        epoch: int,
    ) -> None:
        """Begin a connection to a numeric address; beside TCP where the peer is of this host."""
        self._known.add(connection)
        beside = connect_beside(address[0], address[1])
        if beside is None:
            self._connect_by_tcp(connection, _Target(family, address, epoch), Outbox())
        else:
            self._targets[connection] = _Target(family, address, epoch)
            self._add(connection, beside, self._greeting(epoch), selectors.EVENT_WRITE)

    def _greeting(self, epoch: int) -> ClientHandshake:
        identity = replace(self._identity, epoch=epoch)
        nonce = secrets.token_bytes(NONCE_BYTES)
        return ClientHandshake(self._secret, identity, nonce, self._accept)

    def _connect_by_tcp(self, connection: ConnectionId, target: _Target, outbox: Outbox) -> None:
        try:
            sock = socket.socket(target.family, socket.SOCK_STREAM)
        except OSError as error:
            self.refuse(connection, error)
            return
        self._add(connection, sock, self._greeting(target.epoch), selectors.EVENT_WRITE, outbox)
        if connection in self._connections:
            code = sock.connect_ex(target.address)
            if code not in (0, errno.EINPROGRESS):
                reason = f"cannot connect: {os.strerror(code)}"
                self._lose(connection, ConnectionLost(reason))

    def refuse(self, connection: ConnectionId, error: OSError) -> None:
        """Report a connection that could not even begin."""
        self._known.discard(connection)
        self._events.append(Disconnected(connection, reason_of(error)))

    def queue(self, connection: ConnectionId, frame: Frame) -> None:
        """Send a frame before the round ends, or as soon as the socket takes it; drop it if the
        connection has ended.
        """
        target = self._connections.get(connection)
        if target is None or target.phase is Phase.CLOSING:
            return
        try:
            target.writer.queue(frame)
        except ConnectionLost as error:
            self._lose(connection, error)
        else:
            self._dirty[connection] = None

    def close(self, connection: ConnectionId) -> None:
        """Report the end at once; queued frames still leave."""
        target = self._connections.get(connection)
        if target is None:
            return
        self._report_end(connection, "closed here")
        if target.close_gently():
            self._set_deadline(connection)
            self._dirty[connection] = None
        else:
            self._forget(connection)

    def close_all(self) -> None:
        """End every connection after one attempt to send, and give back every descriptor."""
        for connection in list(self._connections):
            self._flush(connection)
            self._report_end(connection, "the network was stopped")
            if connection in self._connections:
                self._forget(connection)
        for listener in self._listeners:
            listener.close()
        if self._wakened is not None:
            self._wakened.close()
        self._selector.close()

    def statistics(self) -> NetworkStatistics:
        """Counts; the only method that any thread may call."""
        return NetworkStatistics(
            open=len(self._connections) - len(self._deadlines),
            half_open=len(self._half_open),
            refused=self._refused,
            broken=self._broken,
            frames_received=self._frames_received,
            bytes_received=self._bytes_received,
            frames_sent=self._frames_sent,
            bytes_sent=self._bytes_sent,
            last_failure=self._last_failure,
        )

    def _patience(self) -> float | None:
        """Seconds until something must be done without being asked."""
        due = [] if self._accept_again_ns is None else [self._accept_again_ns]
        if self._connections:
            due.append(self._look_ns)
        if self._deadlines:
            due.append(next(iter(self._deadlines.values())))
        return max(0, min(due) - time.monotonic_ns()) / 1e9 if due else None

    def _accept_all(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            if len(self._half_open) >= self._half_open_max:
                self._lose(next(iter(self._half_open)), ConnectionLost("too many strangers"))
            if not is_same_user(sock):
                self._refused += 1
                self._last_failure = "a process of another user"
                sock.close()
                continue
            connection = self._next_id()
            nonce = secrets.token_bytes(NONCE_BYTES)
            handshake = ServerHandshake(self._secret, self._identity, nonce, self._accept)
            self._half_open[connection] = None
            self._add(connection, sock, handshake, selectors.EVENT_READ)

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting: most likely the process is out of descriptors.

        The listener stays readable, so it must leave the selector or the thread would spin.
        """
        self._last_failure = f"cannot accept: {reason_of(error)}"
        if self._accept_again_ns is None:
            self._accept_again_ns = time.monotonic_ns() + _ACCEPT_PAUSE_NS
            for listener in self._listeners:
                self._selector.unregister(listener)

    def _add(
        self,
        connection: ConnectionId,
        sock: socket.socket,
        handshake: ClientHandshake | ServerHandshake,
        mask: int,
        outbox: Outbox | None = None,
    ) -> None:
        self._connections[connection] = Connection(sock, handshake, self._schemas, outbox)
        self._set_deadline(connection)
        self._selector.register(sock, mask, connection)
        try:
            prepare(sock)
        except OSError as error:
            self._lose(connection, error)

    def _ready(self, connection: ConnectionId, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            self._receive(connection)
        target = self._connections.get(connection)
        if target is None or not mask & selectors.EVENT_WRITE:
            return
        if target.phase is Phase.CONNECTING:
            try:
                target.connected()
                self._selector.modify(target.socket, selectors.EVENT_READ, connection)
            except _FAILURES as error:
                self._lose(connection, error)
        else:
            self._flush(connection)

    def _receive(self, connection: ConnectionId) -> None:
        target = self._connections.get(connection)
        if target is None:
            return
        frames: list[Frame] = []
        before = target.phase
        failure: Exception | None = None
        try:
            self._bytes_received += target.receive(frames)
        except _FAILURES as error:
            failure = error
        if before is Phase.GREETING and target.phase is Phase.OPEN:
            self._opened(connection, target)
        # Frames before a failure were good, and their sender may know that they arrived.
        self._events.extend(Received(connection, frame) for frame in frames)
        self._frames_received += len(frames)
        if failure is not None:
            self._lose(connection, failure)

    def _opened(self, connection: ConnectionId, target: Connection) -> None:
        assert target.peer is not None, "an open connection has a peer"
        self._half_open.pop(connection, None)
        self._targets.pop(connection, None)
        del self._deadlines[connection]
        self._known.add(connection)
        self._dirty[connection] = None
        self._events.append(Connected(connection, target.peer))

    def _flush(self, connection: ConnectionId) -> None:
        target = self._connections.get(connection)
        if target is None or target.phase is Phase.CONNECTING:
            return
        writer = target.writer
        frames, sent = writer.sent_frames, writer.sent_bytes
        try:
            blocked = not target.flush()
            if blocked is not target.blocked:
                target.blocked = blocked
                mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
                self._selector.modify(target.socket, mask, connection)
            if writer.untold_bytes >= REPORT_BYTES and connection in self._known:
                self._events.append(Took(connection, writer.tell(), writer.is_dry))
        except _FAILURES as error:
            self._lose(connection, error)
        self._frames_sent += writer.sent_frames - frames
        self._bytes_sent += writer.sent_bytes - sent

    def _lose_unanswered(self) -> None:
        for connection, target in list(self._connections.items()):
            if target.phase is Phase.OPEN and is_unanswered(target.socket):
                silence = f"its machine has not answered for {SILENCE_SECONDS} s"
                self._lose(connection, ConnectionLost(silence))

    def _set_deadline(self, connection: ConnectionId) -> None:
        assert connection not in self._deadlines, "a deadline is set once, or the order is lost"
        self._deadlines[connection] = time.monotonic_ns() + self._handshake_ns

    def _lose(self, connection: ConnectionId, error: Exception) -> None:
        target = self._connections[connection]
        reason = reason_of(error)
        if target.phase in (Phase.CONNECTING, Phase.GREETING):
            self._refused += 1
            self._last_failure = reason
            if connection in self._targets:
                self._fall_back(connection, target)
                return
        elif isinstance(error, WireError):
            self._broken += 1
            self._last_failure = reason
        self._report_end(connection, reason)
        self._forget(connection)

    def _fall_back(self, connection: ConnectionId, target: Connection) -> None:
        """The connection beside TCP did not open: begin again by TCP, with the waiting frames."""
        tcp = self._targets[connection]
        self._forget(connection)
        self._connect_by_tcp(connection, tcp, target.writer.outbox)

    def _report_end(self, connection: ConnectionId, reason: str) -> None:
        if connection in self._known:
            self._known.remove(connection)
            self._events.append(Disconnected(connection, reason))

    def _forget(self, connection: ConnectionId) -> None:
        target = self._connections.pop(connection)
        self._deadlines.pop(connection, None)
        self._half_open.pop(connection, None)
        self._dirty.pop(connection, None)
        self._targets.pop(connection, None)
        self._selector.unregister(target.socket)
        target.shut()
