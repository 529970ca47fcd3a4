"""One connection over a socket pair: handshake, framing in any fragmentation, and the ways to
end.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, CheckpointMode
from headrace.channels.handshake import (
    ClientHandshake,
    HandshakeError,
    Identity,
    ServerHandshake,
)
from headrace.channels.wire import (
    BufferFrame,
    ControlFrame,
    CreditFrame,
    EventFrame,
    Frame,
    FrameDecoder,
    FrameEncoder,
    WireError,
)
from headrace.engine.network import connection as connection_module
from headrace.engine.network.connection import (
    Connection,
    ConnectionLost,
    FrameReader,
    FrameWriter,
    Phase,
    is_unanswered,
    prepare,
    reason_of,
)

KEY = b"k" * 32
CHANNEL = ChannelId(0, 1, 2)
SCHEMA = pa.schema([("key", pa.int64())])


def schemas(edge: int) -> pa.Schema:
    return {0: SCHEMA}[edge]


def anyone(peer: Identity) -> bool:
    return True


def buffer_frame(first: int, rows: int) -> BufferFrame:
    batch = pa.record_batch([pa.array(range(first, first + rows))], schema=SCHEMA)
    return BufferFrame(CHANNEL, Buffer.of(first, batch))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def open_pair(
    ours: socket.socket, theirs: socket.socket, *, server_secret: bytes = b"s" * 32
) -> tuple[Connection, Connection]:
    worker = Identity("job", "worker", 1, 1, 5)
    client = Connection(ours, ClientHandshake(b"s" * 32, worker, b"c" * 32, anyone), schemas)
    identity = Identity("job", "coordinator", 0, 1, 0)
    handshake = ServerHandshake(server_secret, identity, b"n" * 32, anyone)
    server = Connection(theirs, handshake, schemas)
    client.connected()
    server.receive([])
    client.receive([])
    server.receive([])
    return client, server


def test_frames_arrive_in_order_whatever_their_sizes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sizes = [1, 50_000, 3, 8_000, 8_200, 200_000, 1, 1, 8_192, 700]
    sent: list[Frame] = []
    for index, rows in enumerate(sizes):
        sent += [buffer_frame(index, rows), CreditFrame(CHANNEL, index), ControlFrame(b"")]
    writer = FrameWriter(pair[0])
    for frame in sent:
        writer.queue(frame)
    writer.open(FrameEncoder(KEY))
    reader = FrameReader(pair[1], FrameDecoder(KEY, schemas))
    received: list[Frame] = []
    done = False
    while not done or len(received) < len(sent):
        done = writer.flush()
        reader.receive(received)
    for kind in (BufferFrame, CreditFrame, ControlFrame):
        assert [f for f in received if type(f) is kind] == [f for f in sent if type(f) is kind]
    assert len(received) == len(sent) == writer.sent_frames


def test_a_barrier_passes_data_that_the_socket_has_not_taken(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    writer = FrameWriter(pair[0])
    writer.open(FrameEncoder(KEY))
    for index in range(20):
        writer.queue(buffer_frame(index, 32_768))
    assert not writer.flush()
    barrier = EventFrame(ChannelId(1, 0, 0), 9, Barrier(7, CheckpointMode.UNALIGNED, 0))
    writer.queue(barrier)
    reader = FrameReader(pair[1], FrameDecoder(KEY, schemas))
    received: list[Frame] = []
    while barrier not in received:
        reader.receive(received)
        writer.flush()
    assert len(received) < 8, "the barrier waited for data of another channel"


def test_a_writer_tells_of_buffers_that_the_socket_has_wholly_taken(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    writer = FrameWriter(pair[0])
    writer.open(FrameEncoder(KEY))
    sent = [buffer_frame(index, 32_768) for index in range(9)]
    for frame in sent:
        writer.queue(frame)
    assert not writer.flush()
    told_bytes = writer.tell()
    size_bytes = sent[0].buffer.size_bytes
    assert told_bytes <= writer.sent_bytes, "told of a buffer of which a part waits"
    assert told_bytes % size_bytes == 0
    assert not writer.is_dry
    reader, received = FrameReader(pair[1], FrameDecoder(KEY, schemas)), list[Frame]()
    while len(received) < len(sent):
        reader.receive(received)
        writer.flush()
    assert told_bytes + writer.tell() == len(sent) * size_bytes
    assert writer.tell() == 0
    assert writer.is_dry


def test_frames_are_found_when_bytes_come_one_by_one(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sent: list[Frame] = [ControlFrame(b"abc"), buffer_frame(0, 3), CreditFrame(CHANNEL, 7)]
    encoder = FrameEncoder(KEY)
    reader = FrameReader(pair[1], FrameDecoder(KEY, schemas))
    received: list[Frame] = []
    for frame in sent:
        for byte in b"".join(bytes(piece) for piece in encoder.encode(frame)):
            pair[0].send(bytes([byte]))
            reader.receive(received)
    assert received == sent


def test_a_reader_without_data_returns_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    assert FrameReader(pair[1], FrameDecoder(KEY, schemas)).receive([]) < 0


@pytest.mark.parametrize("length", [10, 79, 80, 90])
def test_the_end_of_the_stream_within_a_frame_is_told_apart(
    pair: tuple[socket.socket, socket.socket], length: int
) -> None:
    pieces = FrameEncoder(KEY).encode(ControlFrame(b"x" * 100))
    pair[0].send(b"".join(bytes(piece) for piece in pieces)[:length])
    pair[0].close()
    reader = FrameReader(pair[1], FrameDecoder(KEY, schemas))
    reader.receive([])
    with pytest.raises(ConnectionLost, match="within a frame"):
        reader.receive([])


def test_frames_before_a_bad_one_are_good(pair: tuple[socket.socket, socket.socket]) -> None:
    good = b"".join(bytes(piece) for piece in FrameEncoder(KEY).encode(ControlFrame(b"good")))
    pair[0].send(good + b"\0" * 200)
    received: list[Frame] = []
    with pytest.raises(WireError, match="magic"):
        FrameReader(pair[1], FrameDecoder(KEY, schemas)).receive(received)
    assert received == [ControlFrame(b"good")]


def test_a_peer_that_lets_too_many_frames_wait_is_lost(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "OUTBOX_FRAMES_MAX", 3)
    writer = FrameWriter(pair[0])
    for _ in range(3):
        writer.queue(ControlFrame(b""))
    with pytest.raises(ConnectionLost, match="3 frames"):
        writer.queue(ControlFrame(b""))


def test_a_full_socket_does_not_make_the_writer_encode_everything(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    writer = FrameWriter(pair[0])
    writer.open(FrameEncoder(KEY))
    for index in range(100):
        writer.queue(buffer_frame(index, 32_768))
    assert not writer.flush()
    assert writer.sent_frames < 20


def test_the_handshake_opens_both_ends_and_frames_follow(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = open_pair(*pair)
    assert client.phase is Phase.OPEN
    assert server.phase is Phase.OPEN
    assert server.peer == Identity("job", "worker", 1, 1, 5)
    client.writer.queue(ControlFrame(b"hello"))
    assert client.flush()
    received: list[Frame] = []
    server.receive(received)
    assert received == [ControlFrame(b"hello")]


def test_frames_queued_before_the_handshake_leave_after_it(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    worker = Identity("job", "worker", 1, 1, 5)
    client = Connection(pair[0], ClientHandshake(b"s" * 32, worker, b"c" * 32, anyone), schemas)
    client.writer.queue(ControlFrame(b"early"))
    assert client.flush()
    with pytest.raises(BlockingIOError):
        pair[1].recv(1)
    identity = Identity("job", "coordinator", 0, 1, 0)
    handshake = ServerHandshake(b"s" * 32, identity, b"n" * 32, anyone)
    server = Connection(pair[1], handshake, schemas)
    client.connected()
    server.receive([])
    client.receive([])
    assert client.flush()
    server.receive([])
    received: list[Frame] = []
    server.receive(received)
    assert received == [ControlFrame(b"early")]


def test_a_stranger_gets_no_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(HandshakeError):
        open_pair(*pair, server_secret=b"t" * 32)
    with pytest.raises(BlockingIOError):
        pair[0].recv(1)


def test_a_closing_connection_sends_what_is_queued_and_waits_for_the_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, server = open_pair(*pair)
    client.writer.queue(ControlFrame(b"last"))
    assert client.close_gently()
    assert client.flush()
    received: list[Frame] = []
    with pytest.raises(ConnectionLost, match="closed by the peer"):
        while True:
            server.receive(received)
    assert received == [ControlFrame(b"last")]
    server.shut()
    unwanted: list[Frame] = []
    with pytest.raises(ConnectionLost, match="closed here"):
        client.receive(unwanted)
    assert unwanted == []


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over TCP whose receiver has not read for longer than a machine may be silent."""
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 6)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        for sock in (ours, theirs):
            prepare(sock)
        deadline_s = time.monotonic() + 9
        while time.monotonic() < deadline_s:
            with contextlib.suppress(BlockingIOError):
                ours.send(bytes(1 << 20))
            time.sleep(0.01)
        yield ours, theirs


@pytest.mark.slow
def test_a_peer_that_reads_nothing_is_kept_while_its_machine_answers(
    full: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = full
    assert not is_unanswered(ours)
    assert theirs.recv(1)
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@pytest.mark.parametrize(
    ("probes", "unacknowledged", "answered_ms", "silent"),
    [
        (0, 1, 30_001, True),
        (0, 1, 30_000, False),
        (3, 0, 30_001, True),
        (2, 0, 90_000, False),
        (0, 0, 90_000, False),
    ],
)
def test_a_machine_is_silent_that_acknowledges_neither_data_nor_probes(
    probes: int, unacknowledged: int, answered_ms: int, silent: bool
) -> None:
    info = connection_module._TCP_INFO.pack(probes, unacknowledged, answered_ms)
    assert connection_module._tells_silence(info) is silent


def test_reasons_are_readable() -> None:
    assert reason_of(ConnectionLost("gone")) == "gone"
    assert reason_of(HandshakeError("no")) == "handshake refused: no"
    assert reason_of(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert "sequence" in reason_of(WireError("sequence", CHANNEL, 0, 1, 2))
