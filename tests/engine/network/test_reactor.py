"""The reactor without a thread: the test turns the rounds itself."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from headrace.channels.handshake import Identity
from headrace.channels.wire import ControlFrame
from headrace.engine.network.reactor import (
    Connected,
    ConnectionId,
    Disconnected,
    NetworkEvent,
    Reactor,
    Received,
)

SECRET = b"s" * 32
LOOPBACK = ("127.0.0.1", 0)


def reactor(role: str, *, handshake_ns: int = 2_000_000_000) -> Reactor:
    ids = count(1)
    identity = Identity("job", "worker" if role == "worker" else "coordinator", 1, 1, 0)
    return Reactor(
        SECRET,
        identity,
        lambda edge: pa.schema([]),
        lambda peer: True,
        lambda: ConnectionId(next(ids)),
        handshake_ns=handshake_ns,
        half_open_max=4,
    )


@pytest.fixture
def client() -> Iterator[Reactor]:
    running = reactor("worker")
    yield running
    running.close_all()


@pytest.fixture
def server() -> Iterator[Reactor]:
    running = reactor("coordinator")
    yield running
    running.close_all()


def listening(to: Reactor, kind: Callable[..., socket.socket] = socket.socket) -> Any:
    listener = kind(socket.AF_INET, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(LOOPBACK)
    listener.listen()
    address = listener.getsockname()
    to.listen(listener)
    return address


def turn(*reactors: Reactor, until: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, "it never happened"
        for each in reactors:
            each.select(wait=False)
            each.finish_round()


def joined(client: Reactor, server: Reactor) -> tuple[ConnectionId, ConnectionId]:
    client.connect(ConnectionId(77), socket.AF_INET, listening(server), 5)
    events: list[NetworkEvent] = []

    def both() -> bool:
        events.extend(client.take_events() + server.take_events())
        return len(events) == 2

    turn(client, server, until=both)
    assert all(isinstance(event, Connected) and event.peer.epoch == 5 for event in events)
    back = next(event.connection for event in events if event.connection != 77)
    return ConnectionId(77), back


def test_frames_of_a_round_leave_in_one_call(client: Reactor, server: Reactor) -> None:
    there, back = joined(client, server)
    frames = [ControlFrame(b"%d" % number) for number in range(100)]
    for frame in frames:
        client.queue(there, frame)
    assert client.statistics().frames_sent == 0
    client.finish_round()
    assert client.statistics().frames_sent == 100
    received: list[NetworkEvent] = []

    def all_there() -> bool:
        received.extend(server.take_events())
        return len(received) == 100

    turn(server, until=all_there)
    assert received == [Received(back, frame) for frame in frames]


def test_a_listener_out_of_descriptors_rests_and_does_not_spin(
    client: Reactor, server: Reactor
) -> None:
    class Exhausted(socket.socket):
        failures = 0

        def accept(self) -> Any:
            if self.failures < 2:
                self.failures += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    client.connect(ConnectionId(1), socket.AF_INET, listening(server, Exhausted), 1)
    begin = time.monotonic()
    turn(client, server, until=lambda: server.statistics().open == 1)
    assert time.monotonic() - begin >= 0.2
    assert server.statistics().last_failure == "cannot accept: Too many open files"


def test_select_sleeps_until_the_deadline_and_no_longer(server: Reactor) -> None:
    quick = reactor("coordinator", handshake_ns=30_000_000)
    with socket.create_connection(listening(quick)):
        begin = time.monotonic()
        rounds = 0
        while not quick.statistics().refused:
            quick.select(wait=True)
            quick.finish_round()
            rounds += 1
    assert rounds <= 4
    assert time.monotonic() - begin >= 0.03
    quick.close_all()


def test_a_peer_that_never_ends_cannot_hold_a_closed_connection() -> None:
    client, server = reactor("worker", handshake_ns=30_000_000), reactor("coordinator")
    there, _ = joined(client, server)
    descriptors = len(os.listdir("/proc/self/fd"))
    client.close(there)
    assert client.take_events() == [Disconnected(there, "closed here")]
    turn(client, until=lambda: len(os.listdir("/proc/self/fd")) == descriptors - 1)
    assert client.take_events() == []
    client.close_all()
    server.close_all()


def test_frames_for_connections_that_are_gone_are_dropped(client: Reactor) -> None:
    client.queue(ConnectionId(9), ControlFrame(b"x"))
    client.close(ConnectionId(9))
    client.finish_round()
    assert client.take_events() == []
