"""Networks on loopback: what arrives, who is let in, and what is left afterwards."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from resource import RUSAGE_SELF, getrusage

import pytest

from headrace.channels.buffer import Buffer
from headrace.channels.events import Barrier, CheckpointMode, EndOfInput
from headrace.channels.wire import (
    BufferFrame,
    ControlFrame,
    CreditFrame,
    EventFrame,
    Frame,
)
from headrace.engine.network.connection import REPORT_BYTES
from headrace.engine.network.network import (
    Connected,
    Disconnected,
    Network,
    NetworkEvent,
    Received,
)

from .network_nodes import (
    CHANNEL,
    COORDINATOR,
    DEADLINE_SECONDS,
    SECRET,
    WORKER,
    Node,
    Stranger,
    anyone,
    batch,
    eventually,
    joined,
    node,
    schemas,
    session_bytes,
    stranger,
    unchanged,
)


def test_both_ends_are_told_who_the_other_is(client: Node, server: Node) -> None:
    connection = client.network.connect(server.network.listen("127.0.0.1"), epoch=3)
    assert client.next() == Connected(connection, replace(COORDINATOR, epoch=3))
    assert server.connected().peer == replace(WORKER, epoch=3)


def by_kind(frames: list[Frame]) -> list[list[Frame]]:
    """A channel's content, its credit, and control: the order between them is free."""
    kinds = (BufferFrame | EventFrame, CreditFrame, ControlFrame)
    return [[frame for frame in frames if isinstance(frame, kind)] for kind in kinds]


def test_frames_of_all_kinds_arrive_equal_and_in_the_order_of_their_channel_both_ways(
    client: Node, server: Node
) -> None:
    there, back = joined(client, server)
    frames: list[Frame] = [
        ControlFrame(b"hello"),
        BufferFrame(CHANNEL, Buffer.of(0, batch(100))),
        CreditFrame(CHANNEL, 4_096),
        EventFrame(CHANNEL, 100, Barrier(1, CheckpointMode.UNALIGNED, 5)),
        BufferFrame(CHANNEL, Buffer.of(100, batch(50_000))),
        EventFrame(CHANNEL, 50_100, EndOfInput()),
    ] * 5
    for frame in frames:
        client.network.send(there, frame)
        server.network.send(back, frame)
    for received in (server.frames(len(frames)), client.frames(len(frames))):
        assert by_kind(received) == by_kind(frames)


def test_frames_sent_before_the_connection_stands_are_not_lost(client: Node, server: Node) -> None:
    connection = client.network.connect(server.network.listen("localhost"), epoch=3)
    client.network.send(connection, ControlFrame(b"early"))
    server.connected()
    assert server.frames(1) == [ControlFrame(b"early")]


def test_buffers_of_many_mebibytes_arrive(client: Node, server: Node) -> None:
    there, _ = joined(client, server)
    frame = BufferFrame(CHANNEL, Buffer.of(0, batch(1_200_000)))
    assert frame.buffer.size_bytes > 20 * 1024 * 1024
    client.network.send(there, frame)
    client.network.send(there, ControlFrame(b"after"))
    assert by_kind(server.frames(2)) == by_kind([frame, ControlFrame(b"after")])


def test_the_sender_hears_what_the_socket_has_taken(client: Node, server: Node) -> None:
    there, _ = joined(client, server)
    frames: list[Frame] = [
        BufferFrame(CHANNEL, Buffer.of(first, batch(5_000))) for first in range(0, 300_000, 5_000)
    ]
    for frame in frames:
        client.network.send(there, frame)
    assert server.frames(len(frames)) == frames
    sizes = [frame.buffer.size_bytes for frame in frames if isinstance(frame, BufferFrame)]
    least = sum(sizes) - REPORT_BYTES
    eventually(lambda: client.silent() and sum(t.size_bytes for t in client.took) > least)
    assert sum(took.size_bytes for took in client.took) <= sum(sizes)
    assert all(took.size_bytes >= REPORT_BYTES for took in client.took)
    assert {took.connection for took in client.took} == {there}


def test_little_data_is_not_worth_an_event(client: Node, server: Node) -> None:
    there, _ = joined(client, server)
    client.network.send(there, BufferFrame(CHANNEL, Buffer.of(0, batch(10))))
    server.frames(1)
    assert client.silent()
    assert not client.took


def test_connections_do_not_mix(server: Node) -> None:
    address = server.network.listen("127.0.0.1")
    with node(WORKER) as one, node(replace(WORKER, worker=2)) as two:
        ids = {}
        for each in (one, two):
            connection = each.network.connect(address, epoch=3)
            ids[server.connected().connection] = (each, connection)
            each.connected()
        for known, (each, connection) in ids.items():
            each.network.send(connection, ControlFrame(b"%d" % known))
        for _ in ids:
            event = server.next()
            assert isinstance(event, Received)
            assert event.frame == ControlFrame(b"%d" % event.connection)
        [first, second] = ids
        server.network.close(first)
        assert server.disconnected() == Disconnected(first, "closed here")
        assert ids[first][0].disconnected().reason == "closed by the peer"
        server.network.send(second, ControlFrame(b"still here"))
        assert ids[second][0].frames(1) == [ControlFrame(b"still here")]


def test_what_was_queued_before_close_arrives(client: Node, server: Node) -> None:
    there, back = joined(client, server)
    last = BufferFrame(CHANNEL, Buffer.of(0, batch(300_000)))
    client.network.send(there, last)
    client.network.close(there)
    client.network.send(there, ControlFrame(b"too late"))
    assert client.disconnected() == Disconnected(there, "closed here")
    assert server.frames(1) == [last]
    assert server.next() == Disconnected(back, "closed by the peer")
    eventually(lambda: client.network.statistics().open == 0)


def test_a_connection_that_cannot_be_made_is_reported(client: Node) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connection = client.network.connect(unused.getsockname(), epoch=1)
        assert client.next() == Disconnected(connection, "cannot connect: Connection refused")
    unknown = client.network.connect(("no-such-host.invalid", 1), epoch=1)
    assert client.disconnected().connection == unknown


def test_wildcard_addresses_are_refused(client: Node) -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ValueError, match="every interface"):
            client.network.listen(host)


def test_a_wrong_secret_opens_nothing_at_either_end(server: Node) -> None:
    with node(WORKER, secret=b"t" * 32) as stranger:
        stranger.network.connect(server.network.listen("127.0.0.1"), epoch=3)
        stranger.disconnected()
        # Beside TCP, and then by TCP.
        ways = 2 if sys.platform == "linux" else 1
        eventually(lambda: server.network.statistics().refused == ways)
        assert "secret" in server.network.statistics().last_failure
    assert server.silent()


def test_another_job_is_refused(server: Node) -> None:
    with node(replace(WORKER, job="another")) as stranger:
        stranger.network.connect(server.network.listen("127.0.0.1"), epoch=3)
        stranger.disconnected()
    assert "another job" in server.network.statistics().last_failure
    assert server.silent()


def test_an_old_epoch_is_refused_by_whoever_does_not_want_it(client: Node) -> None:
    with node(COORDINATOR, accept=lambda peer: peer.epoch >= 4) as server:
        address = server.network.listen("127.0.0.1")
        client.network.connect(address, epoch=3)
        client.disconnected()
        assert server.silent()
        client.network.connect(address, epoch=4)
        assert client.connected().peer.epoch == 4
        assert server.connected().peer.epoch == 4


def test_a_peer_that_closes_one_direction_is_gone(server: Node) -> None:
    with stranger(server.network.listen("127.0.0.1")) as peer:
        session_bytes(peer, [], unchanged)
        connected = server.connected()
        peer.socket.shutdown(socket.SHUT_WR)
        assert server.next() == Disconnected(connected.connection, "closed by the peer")
        assert peer.is_closed()


def test_a_frame_that_cannot_be_sent_ends_its_connection_with_a_reason(
    client: Node, server: Node
) -> None:
    there, _ = joined(client, server)
    client.network.send(there, ControlFrame(bytes(64 * 1024 * 1024 + 1)))
    assert "body length" in client.disconnected().reason
    server.disconnected()


def test_events_of_one_round_come_in_one_list() -> None:
    lists: SimpleQueue[list[NetworkEvent]] = SimpleQueue()
    network = Network(SECRET, COORDINATOR, lists.put, schemas, anyone)
    network.start()
    try:
        with stranger(network.listen("127.0.0.1")) as peer:
            session_bytes(peer, [ControlFrame(b"x")] * 500, unchanged)
            counts: list[int] = []
            while sum(counts) < 501:
                counts.append(len(lists.get(timeout=DEADLINE_SECONDS)))
            assert len(counts) < 50
    finally:
        network.stop()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_after_stop() -> None:
    before, threads = descriptors(), set(threading.enumerate())
    with node(COORDINATOR) as server, node(WORKER) as client:
        joined(client, server)
        address = server.network.listen("127.0.0.1")
        joined(client, server)
        stranger_left_open = Stranger(address)
        eventually(lambda: server.network.statistics().half_open == 1)
    assert stranger_left_open.is_closed()
    stranger_left_open.socket.close()
    assert descriptors() == before
    assert set(threading.enumerate()) <= threads


def test_nothing_is_left_of_a_network_that_never_started() -> None:
    before = descriptors()
    network = Network(SECRET, COORDINATOR, lambda events: None, schemas, anyone)
    network.listen("127.0.0.1")
    network.stop()
    network.listen("127.0.0.1")
    assert descriptors() == before


def test_stop_reports_every_connection_once() -> None:
    with node(COORDINATOR) as server, node(WORKER) as client:
        there, back = joined(client, server)
        server.network.stop()
        assert server.next() == Disconnected(back, "the network was stopped")
        assert client.next() == Disconnected(there, "closed by the peer")
        assert server.silent()


def test_an_idle_network_uses_no_processor_time(client: Node, server: Node) -> None:
    joined(client, server)
    begin = getrusage(RUSAGE_SELF)
    threading.Event().wait(0.3)
    end = getrusage(RUSAGE_SELF)
    used = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    assert used < 0.1


def test_memory_stays_constant_under_garbage(server: Node) -> None:
    address = server.network.listen("127.0.0.1")

    def attack(times: int) -> None:
        for _ in range(times):
            with stranger(address) as peer, suppress(ConnectionError):
                peer.socket.sendall(os.urandom(100_000))
                peer.is_closed()

    def resident_bytes() -> int:
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    attack(50)
    before = resident_bytes()
    attack(300)
    assert resident_bytes() - before < 4 * 1024 * 1024
    assert server.network.statistics().half_open == 0


def test_many_threads_may_send_at_once(client: Node, server: Node) -> None:
    there, _ = joined(client, server)

    def send(sender: int) -> None:
        for number in range(500):
            client.network.send(there, ControlFrame(b"%d:%d" % (sender, number)))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    frames = server.frames(2_000)
    for thread in threads:
        thread.join()
    bodies = [frame.body for frame in frames if isinstance(frame, ControlFrame)]
    for sender in range(4):
        own = [body for body in bodies if body.startswith(b"%d:" % sender)]
        assert own == [b"%d:%d" % (sender, number) for number in range(500)]
