"""The line: both ends know the secret, or there is none; silence and hang-ups end the wait."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.engine.control import line as lines
from headrace.engine.control.line import Line, LineBroken, answer, dial
from headrace.engine.control.messages import MESSAGE_BYTES_MAX

SECRET = bytes(32)
WAIT_S = 120.0


class Answering:
    """Lets one caller in."""

    def __init__(self, secret: bytes = SECRET, job: str = "orders") -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()
        self.outcome: list[Line | LineBroken] = []
        self.thread = threading.Thread(target=self._run, args=(secret, job))
        self.thread.start()

    def _run(self, secret: bytes, job: str) -> None:
        caller = self.socket.accept()[0]
        try:
            self.outcome.append(answer(caller, secret, job))
        except LineBroken as reason:
            caller.close()
            self.outcome.append(reason)

    def line(self) -> Line:
        self.thread.join(WAIT_S)
        (line,) = self.outcome
        assert isinstance(line, Line), line
        return line

    def refusal(self) -> str:
        self.thread.join(WAIT_S)
        (reason,) = self.outcome
        assert isinstance(reason, LineBroken), reason
        return str(reason)


@pytest.fixture
def answering() -> Iterator[Answering]:
    end = Answering()
    yield end
    # A caller that has been let in may not have been answered yet.
    end.thread.join(1.0)
    end.socket.close()
    for line in end.outcome:
        if isinstance(line, Line):
            line.close()


def test_messages_pass_both_ways(answering: Answering) -> None:
    here = dial(answering.address, SECRET, "orders")
    there = answering.line()
    here.send(b"ask")
    assert there.receive(WAIT_S) == b"ask"
    there.send(b"")
    there.send(b"answer")
    assert [here.receive(WAIT_S), here.receive(WAIT_S)] == [b"", b"answer"]
    here.close()
    with pytest.raises(LineBroken, match="hung up"):
        there.receive(WAIT_S)


def test_whoever_does_not_know_the_secret_is_not_let_in(answering: Answering) -> None:
    with pytest.raises(LineBroken, match="is not the job's process"):
        dial(answering.address, bytes([1]) * 32, "orders")
    assert "does not know the secret" in answering.refusal()


def test_another_jobs_process_is_not_talked_to(answering: Answering) -> None:
    with pytest.raises(LineBroken):
        dial(answering.address, SECRET, "payments")
    assert "belongs to another job" in answering.refusal()


def test_nobody_listening_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(LineBroken, match="nobody answers"):
        dial(address, SECRET, "orders")


def test_somebody_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "HANDSHAKE_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(LineBroken, match="silent"),
    ):
        dial(silent.getsockname(), SECRET, "orders")


def test_a_silent_caller_is_hung_up_on(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HANDSHAKE_S", 0.05)
    with socket.create_connection(answering.address) as caller:
        assert "silent" in answering.refusal()
        assert caller.recv(1) == b""


def test_a_caller_that_sends_a_byte_now_and_then_is_hung_up_on(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HANDSHAKE_S", 0.2)
    with socket.create_connection(answering.address) as caller:
        caller.settimeout(0.05)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s and answering.thread.is_alive():
            with contextlib.suppress(ConnectionError):
                caller.sendall(b"x")
            with contextlib.suppress(TimeoutError, ConnectionError):
                caller.recv(1)
    assert not answering.thread.is_alive()
    assert re.search("too slow|silent", answering.refusal())


def test_a_message_that_is_too_long_is_not_sent(answering: Answering) -> None:
    here = dial(answering.address, SECRET, "orders")
    with pytest.raises(LineBroken, match="cannot be sent"):
        here.send(bytes(MESSAGE_BYTES_MAX + 1))
    here.close()


def test_what_somebody_on_the_way_changed_is_no_message(answering: Answering) -> None:
    here = dial(answering.address, SECRET, "orders")
    there = answering.line()
    here._socket.sendall(bytes(80))
    with pytest.raises(LineBroken, match="is no message"):
        there.receive(WAIT_S)
    here.close()
