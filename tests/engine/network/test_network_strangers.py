"""Strangers on loopback: recorded, flipped, invented and endless bytes get nowhere."""

from __future__ import annotations

import socket

import pytest

from headrace.channels.buffer import Buffer
from headrace.channels.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
)
from headrace.channels.wire import (
    BufferFrame,
    ControlFrame,
    CreditFrame,
    Frame,
)
from headrace.engine.network.network import (
    Disconnected,
    Received,
)

from .network_nodes import (
    CHANNEL,
    COORDINATOR,
    WORKER,
    Node,
    Stranger,
    batch,
    eventually,
    node,
    session_bytes,
    stranger,
    unchanged,
)


def test_a_replayed_session_is_refused(server: Node) -> None:
    address = server.network.listen("127.0.0.1")
    with stranger(address) as original:
        recorded = session_bytes(original, [ControlFrame(b"pay")], unchanged)
        server.connected()
        assert server.frames(1) == [ControlFrame(b"pay")]
    server.disconnected()
    with stranger(address) as replay:
        replay.socket.sendall(recorded)
        assert len(replay.receive(CHALLENGE_BYTES)) == CHALLENGE_BYTES
        assert replay.is_closed()
    assert "nonce" in server.network.statistics().last_failure
    assert server.silent()


def test_a_flipped_bit_anywhere_in_a_session_is_noticed(server: Node) -> None:
    address = server.network.listen("127.0.0.1")
    frames: list[Frame] = [CreditFrame(CHANNEL, 5), BufferFrame(CHANNEL, Buffer.of(0, batch(2)))]
    with stranger(address) as honest:
        length = len(session_bytes(honest, frames, unchanged))
        server.connected()
        assert server.frames(2) == frames
    server.disconnected()
    for position in range(length):

        def flip(offset: int, message: bytes, at: int = position) -> bytes:
            altered = bytearray(message)
            if 0 <= at - offset < len(message):
                altered[at - offset] ^= 1 << (at % 8)
            return bytes(altered)

        with stranger(address) as liar:
            session_bytes(liar, frames, flip)
            assert liar.is_closed()
        if position >= HELLO_BYTES + PROOF_BYTES:
            server.connected()
            event = server.next()
            if isinstance(event, Received):
                assert event.frame == frames[0]
                event = server.next()
            assert isinstance(event, Disconnected)
            assert "in the frame at byte" in event.reason
        assert server.silent()
    assert server.network.statistics().refused == HELLO_BYTES + PROOF_BYTES


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10, b"\0" * 1_000, b"\xff" * HELLO_BYTES],
    ids=["http", "zeros", "ones"],
)
def test_garbage_gets_no_answer(server: Node, garbage: bytes) -> None:
    with stranger(server.network.listen("127.0.0.1")) as peer:
        peer.socket.sendall(garbage)
        assert peer.is_closed()
    assert server.silent()


def test_garbage_after_the_handshake_closes_the_connection(server: Node) -> None:
    with stranger(server.network.listen("127.0.0.1")) as peer:
        session_bytes(peer, [], unchanged)
        server.connected()
        peer.socket.sendall(b"\xff" * 1_000)
        assert "magic" in server.disconnected().reason
        assert peer.is_closed()
    assert server.network.statistics().broken == 1


def test_silence_and_dribbling_end_at_the_deadline() -> None:
    with node(COORDINATOR, handshake_ns=100_000_000) as server:
        address = server.network.listen("127.0.0.1")
        with stranger(address) as mute, stranger(address) as dribbling:
            dribbling.socket.sendall(b"HRH1")
            assert mute.is_closed()
            assert dribbling.is_closed()
        assert server.network.statistics().last_failure == "no answer in time"
        assert server.silent()


def test_a_server_that_never_answers_is_given_up() -> None:
    mute = socket.create_server(("127.0.0.1", 0))
    with mute, node(WORKER, handshake_ns=50_000_000) as client:
        connection = client.network.connect(mute.getsockname(), epoch=1)
        assert client.next() == Disconnected(connection, "no answer in time")


def test_crowds_of_strangers_do_not_keep_a_friend_out(client: Node) -> None:
    with node(COORDINATOR, half_open_max=8) as server:
        address = server.network.listen("127.0.0.1")
        crowd = [Stranger(address) for _ in range(30)]
        eventually(lambda: server.network.statistics().refused == 22)
        assert server.network.statistics().half_open == 8
        client.network.connect(address, epoch=3)
        client.connected()
        server.connected()
        assert server.network.statistics().half_open <= 8
        for one in crowd:
            one.socket.close()
        eventually(lambda: server.network.statistics().half_open == 0)
