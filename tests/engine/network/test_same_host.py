"""Processes of one host meet beside TCP, and by TCP whenever that fails, with nothing lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.channels.wire import ControlFrame
from headrace.engine.network import connection as connection_module
from headrace.engine.network import reactor as reactor_module
from headrace.engine.network.connection import is_unanswered, prepare
from headrace.engine.network.same_host import (
    connect_beside,
    is_local,
    is_same_user,
    listen_beside,
    name_of,
)

from .network_nodes import WORKER, Node, joined, node

#: Nobody else uses the names beside this number: it is no port.
PORT = 65_536 + os.getpid()

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> list[socket.AddressFamily]:
    """The families of sockets that became connections of this process."""
    seen: list[socket.AddressFamily] = []

    def noted(sock: socket.socket) -> None:
        seen.append(sock.family)
        prepare(sock)

    monkeypatch.setattr(reactor_module, "prepare", noted)
    return seen


@contextmanager
def squatter(address: tuple[str, int]) -> Iterator[socket.socket]:
    """Another program of ours at the name beside a TCP address."""
    taken = listen_beside(*address, 1)
    assert taken is not None
    taken.setblocking(True)
    with taken:
        yield taken


def tcp_only(server: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Let a server listen by TCP alone."""
    from headrace.engine.network import network as network_module

    with monkeypatch.context() as patched:
        patched.setattr(network_module, "listen_beside", lambda *_: None)
        return server.network.listen("127.0.0.1")


def test_processes_of_one_host_do_not_use_tcp(
    client: Node, server: Node, families: list[socket.AddressFamily]
) -> None:
    there, back = joined(client, server)
    client.network.send(there, ControlFrame(b"there"))
    server.network.send(back, ControlFrame(b"back"))
    assert server.frames(1) == [ControlFrame(b"there")]
    assert client.frames(1) == [ControlFrame(b"back")]
    assert families == [socket.AF_UNIX, socket.AF_UNIX]


def test_without_the_name_tcp_serves(
    client: Node,
    server: Node,
    families: list[socket.AddressFamily],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = client.network.connect(tcp_only(server, monkeypatch), epoch=3)
    client.network.send(connection, ControlFrame(b"early"))
    assert client.connected().connection == connection
    server.connected()
    assert server.frames(1) == [ControlFrame(b"early")]
    assert set(families) == {socket.AF_INET}


@pytest.mark.parametrize("answer", [b"", b"x" * 128], ids=["closes", "lies"])
def test_a_squatter_at_the_name_delays_nothing_and_loses_no_frame(
    client: Node,
    server: Node,
    families: list[socket.AddressFamily],
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
) -> None:
    address = tcp_only(server, monkeypatch)
    with squatter(address) as taken:

        def play() -> None:
            stranger, _ = taken.accept()
            with stranger:
                stranger.recv(128)
                stranger.sendall(answer)

        plays = threading.Thread(target=play)
        plays.start()
        connection = client.network.connect(address, epoch=3)
        sent = [ControlFrame(bytes([number])) for number in range(20)]
        for frame in sent:
            client.network.send(connection, frame)
        assert client.connected().connection == connection
        assert server.connected().peer.epoch == 3
        assert server.frames(20) == sent
        plays.join()
    assert families[0] is socket.AF_UNIX
    assert client.silent()


def test_a_silent_process_at_the_name_is_given_up_once() -> None:
    with (
        node(WORKER, handshake_ns=50_000_000) as client,
        socket.create_server(("127.0.0.1", 0)) as mute,
    ):
        host, port = mute.getsockname()
        with squatter((host, port)):
            connection = client.network.connect((host, port), epoch=3)
            lost = client.disconnected()
        assert (lost.connection, lost.reason) == (connection, "no answer in time")
        mute.setblocking(False)
        with pytest.raises(BlockingIOError):
            mute.accept()


def test_closed_before_the_handshake_a_connection_does_not_come_back_by_tcp(
    client: Node, server: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tcp_only(server, monkeypatch)
    with squatter(address) as taken:
        connection = client.network.connect(address, epoch=3)
        stranger, _ = taken.accept()
        client.network.close(connection)
        assert client.disconnected().connection == connection
        stranger.close()
    assert client.silent()
    assert server.silent()


def test_another_user_gets_no_challenge(server: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = server.network.listen("127.0.0.1")
    monkeypatch.setattr(reactor_module, "is_same_user", lambda sock: not is_local(sock))
    name = name_of(host, port)
    assert name is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(name)
        stranger.settimeout(60)
        assert stranger.recv(1) == b""
    assert "another user" in server.network.statistics().last_failure


def test_a_process_of_another_user_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with squatter(("127.0.0.1", PORT)):
        mine = connect_beside("127.0.0.1", PORT)
        assert mine is not None
        with mine:
            assert is_same_user(mine)
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            assert not is_same_user(mine)
        assert connect_beside("127.0.0.1", PORT) is None


def test_names_are_of_one_address() -> None:
    with squatter(("127.0.0.1", PORT)):
        assert connect_beside("127.0.0.1", PORT + 1) is None
        assert connect_beside("127.0.0.2", PORT) is None
        assert listen_beside("127.0.0.1", PORT, 1) is None


def test_a_name_goes_with_its_process() -> None:
    """SIGKILL leaves nothing that a later process of the same port would meet."""
    code = (
        "from headrace.engine.network.same_host import listen_beside\n"
        "import sys, time\n"
        f"kept = listen_beside('127.0.0.1', {PORT}, 1)\n"
        "print('listens', flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = connect_beside("127.0.0.1", PORT)
        assert found is not None
        found.close()
        process.kill()
    assert connect_beside("127.0.0.1", PORT) is None


def test_the_machine_of_a_local_peer_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", -1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        prepare(ours)
        assert not is_unanswered(ours)


def test_other_systems_have_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert listen_beside("127.0.0.1", PORT, 1) is None
    assert connect_beside("127.0.0.1", PORT) is None


def test_the_secret_is_asked_for_beside_tcp_too(server: Node) -> None:
    """A process of our user without the secret gets a challenge and no more."""
    host, port = server.network.listen("127.0.0.1")
    sock = connect_beside(host, port)
    assert sock is not None
    with sock:
        sock.setblocking(True)
        sock.sendall(b"x" * 128)
        assert sock.recv(1) == b""
