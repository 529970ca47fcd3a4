"""The endpoint of a job, and the client that asks it: one request at a time, every outcome told,
strangers kept out.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.engine.contract.errors import HeadraceError, JobFailed, UserError
from headrace.engine.contract.outcomes import JobResult, Rescaled
from headrace.engine.control import client, server
from headrace.engine.control import line as lines
from headrace.engine.control import messages as m
from headrace.engine.control.client import ask
from headrace.engine.control.folder import running
from headrace.engine.control.server import ControlEndpoint, open_control
from headrace.engine.observation.observed import Observation
from tests.engine.cli.looks import BUSY, observed

WAIT_S = 120.0


class FakeJob:
    """Runs until it is told to stop; rescales when it is let."""

    name = "orders"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ended = threading.Event()
        self.may_rescale = threading.Event()
        self.rescaling = threading.Event()
        self.fails: Exception | None = None

    def rescale(self, parallelism: int) -> Rescaled:
        self.rescaling.set()
        assert self.may_rescale.wait(WAIT_S)
        if self.fails is not None:
            raise self.fails
        self.calls.append(f"rescale {parallelism}")
        return Rescaled(parallelism, 7, 1_000, 2_000, 1_500)

    def savepoint(self, path: str | None = None, mode: str | None = None) -> str:
        self.calls.append(f"savepoint {path} {mode}")
        return "/saved/orders/sav-8"

    def stop(self) -> None:
        self.calls.append("stop")
        self.ended.set()

    def stop_with_savepoint(
        self, path: str | None = None, mode: str | None = None, *, drain: bool = False
    ) -> str:
        self.calls.append(f"stop with savepoint {path} {mode} {drain}")
        self.ended.set()
        return "/saved/orders/sav-9"

    def drain(self) -> None:
        self.calls.append("drain")
        self.ended.set()

    def observe(self) -> Observation:
        return observed(BUSY)

    def cancel(self) -> None:
        self.calls.append("cancel")
        self.ended.set()

    def wait(self, timeout_s: float | None = None) -> JobResult:
        if not self.ended.wait(timeout_s):
            raise TimeoutError
        if isinstance(self.fails, JobFailed):
            raise self.fails
        return JobResult("orders", last_checkpoint=9)


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.005)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def job(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    monkeypatch.setattr(server, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(server, "WORKING_EVERY_S", 0.02)
    job = FakeJob()
    endpoint = ControlEndpoint(job, Path(folder))
    yield job
    job.may_rescale.set()
    job.ended.set()
    endpoint._thread.join(WAIT_S)


class Refusing:
    """A listening socket that is out of descriptors for its first caller."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._refuses = True

    def accept(self) -> tuple[socket.socket, object]:
        if self._refuses:
            self._refuses = False
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listening, name)


def test_a_caller_that_could_not_be_let_in_is_not_the_end(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(server, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(socket, "create_server", lambda _: Refusing(listening))
    job = FakeJob()
    endpoint = ControlEndpoint(job, Path(folder))
    assert ask("orders", m.Stop(now=False), address=folder) == m.StopDone(9, finished=True)
    endpoint._thread.join(WAIT_S)
    assert job.calls == ["stop"]


def test_a_rescale_is_carried_out_and_told(job: FakeJob, folder: str) -> None:
    job.may_rescale.set()
    done = ask("orders", m.Rescale(4), address=folder)
    assert done == m.RescaleDone(4, 7, 1_000, 2_000, 1_500)
    assert job.calls == ["rescale 4"]


def test_a_savepoint_is_taken_and_its_path_told(job: FakeJob, folder: str) -> None:
    done = ask("orders", m.Savepoint("/saved", "unaligned"), address=folder)
    assert done == m.SavepointDone("/saved/orders/sav-8")
    assert job.calls == ["savepoint /saved unaligned"]


@pytest.mark.parametrize(
    ("stop", "called"),
    [
        (m.Stop(now=False), "stop"),
        (m.Stop(now=False, drain=True), "drain"),
        (m.Stop(now=True), "cancel"),
    ],
)
def test_a_stop_is_answered_when_the_job_has_ended(
    job: FakeJob, folder: str, stop: m.Stop, called: str
) -> None:
    assert ask("orders", stop, address=folder) == m.StopDone(9, finished=True)
    assert job.calls == [called]
    wait_for(lambda: running(Path(folder)) == [])


def test_a_stop_with_a_savepoint_is_answered_with_its_path(job: FakeJob, folder: str) -> None:
    request = m.Stop(now=False, drain=True, savepoint="/saved", mode="aligned")
    done = ask("orders", request, address=folder)
    assert done == m.StopDone(9, finished=True, savepoint="/saved/orders/sav-9")
    assert job.calls == ["stop with savepoint /saved aligned True"]


def test_a_long_request_is_waited_for(
    job: FakeJob, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than silence would be, because the endpoint says that it is at work."""
    monkeypatch.setattr(client, "_SILENCE_S", 0.2)
    threading.Timer(0.5, job.may_rescale.set).start()
    assert isinstance(ask("orders", m.Rescale(4), address=folder), m.RescaleDone)


def test_a_job_can_be_looked_at_while_another_request_is_carried_out(
    job: FakeJob, folder: str
) -> None:
    first = threading.Thread(target=ask, args=("orders", m.Rescale(4)), kwargs={"address": folder})
    first.start()
    assert job.rescaling.wait(WAIT_S)
    assert client.look_at(client.find(None, address=folder)) == observed(BUSY)
    job.may_rescale.set()
    first.join(WAIT_S)


def test_a_second_request_is_refused_unless_it_is_to_stop_at_once(
    job: FakeJob, folder: str
) -> None:
    first = threading.Thread(target=ask, args=("orders", m.Rescale(4)), kwargs={"address": folder})
    first.start()
    assert job.rescaling.wait(WAIT_S)
    with pytest.raises(HeadraceError, match="another request is being carried out"):
        ask("orders", m.Stop(now=False), address=folder)
    assert ask("orders", m.Stop(now=True), address=folder) == m.StopDone(9, finished=True)
    job.may_rescale.set()
    first.join(WAIT_S)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UserError("too many"), UserError),
        (HeadraceError("goes on"), HeadraceError),
        (ValueError("a bug"), HeadraceError),
    ],
)
def test_what_goes_wrong_is_told(
    job: FakeJob, folder: str, error: Exception, kind: type[HeadraceError]
) -> None:
    job.fails = error
    job.may_rescale.set()
    with pytest.raises(kind, match=str(error)) as caught:
        ask("orders", m.Rescale(4), address=folder)
    assert type(caught.value) is kind


def test_a_job_that_failed_says_so_to_whoever_stops_it(job: FakeJob, folder: str) -> None:
    job.fails = JobFailed("a worker keeps dying")
    with pytest.raises(HeadraceError, match="a worker keeps dying"):
        ask("orders", m.Stop(now=False), address=folder)


def test_strangers_do_not_keep_the_job_from_answering(job: FakeJob, folder: str) -> None:
    (said,) = running(Path(folder))
    callers = [socket.create_connection((said.host, said.port)) for _ in range(3)]
    callers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
    assert ask("orders", m.Stop(now=False), address=folder) == m.StopDone(9, finished=True)
    for caller in callers:
        caller.close()


def test_a_crowd_of_silent_strangers_does_not_keep_the_owner_out(
    job: FakeJob, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said,) = running(Path(folder))
    monkeypatch.setattr(lines, "HANDSHAKE_S", WAIT_S)
    crowd = [socket.create_connection((said.host, said.port)) for _ in range(100)]
    try:
        assert ask("orders", m.Stop(now=False), address=folder) == m.StopDone(9, finished=True)
        for evicted in crowd[:30]:
            evicted.settimeout(WAIT_S)
            assert evicted.recv(1) == b""
    finally:
        for caller in crowd:
            caller.close()


def test_a_job_runs_without_control_where_there_is_no_place_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "headrace").write_text("a file in its place")
    open_control(FakeJob())
    assert "cannot be controlled from elsewhere" in caplog.text
