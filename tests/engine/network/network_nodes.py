"""Networks on loopback, and what they deliver."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

import numpy as np
import pyarrow as pa

from headrace.channels.buffer import ChannelId
from headrace.channels.handshake import (
    CHALLENGE_BYTES,
    ClientHandshake,
    Identity,
)
from headrace.channels.wire import (
    Frame,
    FrameEncoder,
)
from headrace.engine.network.network import (
    Connected,
    ConnectionId,
    Disconnected,
    Network,
    NetworkEvent,
    Received,
    Took,
)

SECRET = b"s" * 32
WORKER = Identity("job", "worker", worker=1, incarnation=2, epoch=0)
COORDINATOR = Identity("job", "coordinator", worker=0, incarnation=1, epoch=0)
CHANNEL = ChannelId(0, 1, 2)
SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
DEADLINE_SECONDS = 120.0


def schemas(edge: int) -> pa.Schema:
    return {0: SCHEMA}[edge]


def anyone(peer: Identity) -> bool:
    return True


def batch(rows: int) -> pa.RecordBatch:
    keys = np.arange(rows)
    return pa.record_batch([keys, pa.array(keys).cast(pa.string())], schema=SCHEMA)


class Node:
    """A network and the events it delivered, taken one by one.

    `took`: what was told of sent data, which comes whenever the socket has taken it.
    """

    def __init__(self, network: Network, events: SimpleQueue[list[NetworkEvent]]) -> None:
        self.network = network
        self._events = events
        self._taken: list[NetworkEvent] = []
        self.took: list[Took] = []

    def next(self) -> NetworkEvent:
        while not self._taken:
            self._keep(self._events.get(timeout=DEADLINE_SECONDS))
        return self._taken.pop(0)

    def _keep(self, events: list[NetworkEvent]) -> None:
        self.took += [event for event in events if isinstance(event, Took)]
        self._taken += [event for event in events if not isinstance(event, Took)]

    def frames(self, count: int) -> list[Frame]:
        received: list[Frame] = []
        while len(received) < count:
            event = self.next()
            assert isinstance(event, Received), event
            received.append(event.frame)
        return received

    def connected(self) -> Connected:
        event = self.next()
        assert isinstance(event, Connected), event
        return event

    def disconnected(self) -> Disconnected:
        event = self.next()
        assert isinstance(event, Disconnected), event
        return event

    def silent(self) -> bool:
        """Nothing is waiting; call it once whatever could have come has."""
        with suppress(Empty):
            self._keep(self._events.get_nowait())
        return not self._taken


@contextmanager
def node(
    identity: Identity,
    *,
    secret: bytes = SECRET,
    accept: Callable[[Identity], bool] = anyone,
    handshake_ns: int = 2_000_000_000,
    half_open_max: int = 64,
) -> Iterator[Node]:
    events: SimpleQueue[list[NetworkEvent]] = SimpleQueue()
    network = Network(
        secret,
        identity,
        events.put,
        schemas,
        accept,
        handshake_ns=handshake_ns,
        half_open_max=half_open_max,
    )
    network.start()
    try:
        yield Node(network, events)
    finally:
        network.stop()


def joined(client: Node, server: Node) -> tuple[ConnectionId, ConnectionId]:
    connection = client.network.connect(server.network.listen("127.0.0.1"), epoch=3)
    assert client.connected().connection == connection
    return connection, server.connected().connection


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happened"
        threading.Event().wait(0.001)


class Stranger:
    """A plain socket that plays the client's part byte by byte."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=DEADLINE_SECONDS)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                break
            data += more
        return data

    def is_closed(self) -> bool:
        """Waits for the end; True if not a byte came before it."""
        with suppress(ConnectionResetError):
            return self.receive(1) == b""
        return True


@contextmanager
def stranger(address: tuple[str, int]) -> Iterator[Stranger]:
    plays = Stranger(address)
    try:
        yield plays
    finally:
        plays.socket.close()


def session_bytes(
    peer: Stranger, frames: list[Frame], alter: Callable[[int, bytes], bytes]
) -> bytes:
    """Speak the protocol over `peer`, each message passed through `alter(offset, message)`; stops
    when refused.

    Returns what an honest client would have sent.
    """
    handshake = ClientHandshake(SECRET, replace(WORKER, epoch=3), b"c" * 32, anyone)
    hello = handshake.hello()
    peer.socket.sendall(alter(0, hello))
    challenge = peer.receive(CHALLENGE_BYTES)
    if len(challenge) < CHALLENGE_BYTES:
        return hello
    proof, session = handshake.challenged(challenge)
    encoder = FrameEncoder(session.send_key)
    rest = proof + b"".join(bytes(piece) for frame in frames for piece in encoder.encode(frame))
    peer.socket.sendall(alter(len(hello), rest))
    return hello + rest


def unchanged(offset: int, message: bytes) -> bytes:
    return message
