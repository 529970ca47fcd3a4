"""The network: the only sockets of a process, driven by one thread.

Workers and the coordinator use the same class. Other threads give commands, which never block: a
command goes into a queue, and wakes the thread only if the thread sleeps. Events come back in lists
through `deliver`, called in the network thread with everything that was ready, so that the owner
thread wakes up once for many frames.

Why one thread: under the GIL more threads are slower, not faster, since every system call has to
win the GIL back; and a table that one thread owns needs no lock. Why not asyncio: its streams took
three times as long for a round trip.

`reactor.py` handles the sockets, `connection.py` their bytes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple, assert_never

import pyarrow as pa

from headrace.channels.handshake import Identity
from headrace.channels.wire import Frame

from ..contract.errors import AddressUnreachable
from .reactor import (
    HALF_OPEN_MAX,
    HANDSHAKE_NS,
    Connected,
    ConnectionId,
    Disconnected,
    NetworkEvent,
    NetworkStatistics,
    Reactor,
    Received,
    SocketAddress,
    Took,
)
from .same_host import listen_beside

#: What users of a network need, from one place.
__all__ = [
    "Connected",
    "ConnectionId",
    "Disconnected",
    "Network",
    "NetworkEvent",
    "NetworkStatistics",
    "Received",
    "Took",
    "check_reachable",
]

#: Connections that the kernel keeps for us until we accept them.
_BACKLOG: Final = 128


class _Send(NamedTuple):
    connection: ConnectionId
    frame: Frame


class _Connect(NamedTuple):
    connection: ConnectionId
    target: tuple[socket.AddressFamily, SocketAddress] | OSError
    epoch: int


class _Close(NamedTuple):
    connection: ConnectionId


class _Listen(NamedTuple):
    listener: socket.socket


class _Stop(NamedTuple):
    pass


_Command = _Send | _Connect | _Close | _Listen | _Stop


class Network:
    """All connections of a process. Call `start` once and `stop` once; every thread may call the
    other methods.
    """

    def __init__(
        self,
        secret: bytes,
        identity: Identity,
        deliver: Callable[[list[NetworkEvent]], None],
        schemas: Callable[[int], pa.Schema],
        accept: Callable[[Identity], bool],
        *,
        handshake_ns: int = HANDSHAKE_NS,
        half_open_max: int = HALF_OPEN_MAX,
    ) -> None:
        """Prepare; the thread begins with `start`.

        Args:
            secret: the job's; at least 16 bytes.
            identity: ours; its epoch is replaced by that of the connection.
            deliver: called in the network thread; must only enqueue.
            schemas: schema of an edge, LookupError if unknown; called in the network thread.
            accept: whether to talk to a peer that has proven its identity, at either end; called in
                the network thread, must be quick and change nothing.
        """
        self._deliver = deliver
        self._ids = count(1)
        self._reactor = Reactor(
            secret,
            identity,
            schemas,
            accept,
            self._next_id,
            handshake_ns=handshake_ns,
            half_open_max=half_open_max,
        )
        self._commands: deque[_Command] = deque()
        self._sleeping = False
        self._stopping = False
        self._ended = False
        self._waker, wakened = socket.socketpair()
        self._waker.setblocking(False)
        wakened.setblocking(False)
        self._reactor.wake_by(wakened)
        self._thread = threading.Thread(target=self._run, name="headrace-network", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End everything: each known connection gets its Disconnected, the thread ends, all
        descriptors are closed.

        Queued frames get one attempt; `close` a connection and await its peer if the last frames
        matter.
        """
        assert threading.current_thread() is not self._thread, "the network cannot join itself"
        self._command(_Stop())
        if self._thread.ident is None:
            self._finish()
        else:
            self._thread.join()

    def listen(self, host: str) -> tuple[str, int]:
        """Accept connections at a free port of one address of ours, and return the numeric address
        and port. Processes of this host take the way of `same_host.py`.

        Raises: OSError if the address is not ours; ValueError for an address that means every
        interface.
        """
        family, address = _resolve(host, 0)
        if ipaddress.ip_address(address[0].partition("%")[0]).is_unspecified:
            raise ValueError(f"{host!r} would open every interface; name one address")
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(_BACKLOG)
            bound = listener.getsockname()
        except OSError:
            listener.close()
            raise
        self._command(_Listen(listener))
        beside = listen_beside(bound[0], bound[1], _BACKLOG)
        if beside is not None:
            self._command(_Listen(beside))
        return bound[0], bound[1]

    def connect(self, address: tuple[str, int], epoch: int) -> ConnectionId:
        """Begin to connect to a host and port for an epoch; Connected or Disconnected follows.

        Frames may be sent at once, and wait. The caller's thread looks a host name up; a numeric
        address never blocks.
        """
        connection = self._next_id()
        target: tuple[socket.AddressFamily, SocketAddress] | OSError
        try:
            target = _resolve(*address)
        except OSError as error:
            target = error
        self._command(_Connect(connection, target, epoch))
        return connection

    def send(self, connection: ConnectionId, frame: Frame) -> None:
        """Queue a frame. Never blocks; drops a frame for a connection that has ended."""
        self._command(_Send(connection, frame))

    def close(self, connection: ConnectionId) -> None:
        """Receive no more from a connection, send its queued frames, and end it. Its Disconnected
        comes at once.
        """
        self._command(_Close(connection))

    def statistics(self) -> NetworkStatistics:
        """Return the counts; each is right, together they may be of slightly different moments."""
        return self._reactor.statistics()

    def _next_id(self) -> ConnectionId:
        return ConnectionId(next(self._ids))

    def _command(self, command: _Command) -> None:
        self._commands.append(command)
        # The thread announces its sleep before the last look at the queue, and we look in the
        # opposite order: either the thread finds the command, or we find the thread asleep.
        if self._sleeping:
            self._sleeping = False
            with contextlib.suppress(OSError):
                self._waker.send(b"\0")
        if self._ended:
            self._discard_commands()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._round()
        finally:
            self._finish()

    def _round(self) -> None:
        self._sleeping = True
        self._reactor.select(wait=not self._commands)
        self._sleeping = False
        self._deliver_events()
        # Only what is there now: a flood of commands must not keep the sockets waiting.
        for _ in range(len(self._commands)):
            self._perform(self._commands.popleft())
        self._reactor.finish_round()
        self._deliver_events()

    def _deliver_events(self) -> None:
        events = self._reactor.take_events()
        if events:
            self._deliver(events)

    def _perform(self, command: _Command) -> None:
        match command:
            case _Send(connection, frame):
                self._reactor.queue(connection, frame)
            case _Connect(connection, target, epoch):
                if isinstance(target, OSError):
                    self._reactor.refuse(connection, target)
                else:
                    self._reactor.connect(connection, *target, epoch)
            case _Close(connection):
                self._reactor.close(connection)
            case _Listen(listener):
                self._reactor.listen(listener)
            case _Stop():
                self._stopping = True
            case _:
                assert_never(command)

    def _finish(self) -> None:
        """End every connection, also when a bug ended the thread: a thread that waits for a peer
        must hear of the end.
        """
        self._reactor.close_all()
        self._waker.close()
        self._ended = True
        self._discard_commands()
        self._deliver_events()

    def _discard_commands(self) -> None:
        """Drop commands that came too late; close a listener among them."""
        with contextlib.suppress(IndexError):
            while True:
                command = self._commands.popleft()
                if isinstance(command, _Listen):
                    command.listener.close()


def check_reachable(address: tuple[str, int]) -> None:
    """Look for a route to an address of ours; nothing is sent.

    Raises: AddressUnreachable, as in a network namespace whose loopback is down.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except OSError as error:
            raise AddressUnreachable(
                f"this machine cannot reach its own address {address[0]}: {error.strerror};"
                " is its network interface up?"
            ) from error


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, SocketAddress]:
    """Return the first numeric address of a host name or address. Raises: OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    assert isinstance(address[0], str), f"an address of an unknown family: {address}"
    return family, address
