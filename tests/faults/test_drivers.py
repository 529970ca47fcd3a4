"""Drivers that die, are interrupted, doubled or cut off (faults F1, F4, F6): no process stays, and
the next run goes on exactly.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.bench.audit import AuditedJob
from headrace.engine.coordinator.coordinator_events import NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers import coordinator_driver

from .conftest import (
    WAIT_S,
    StartDriver,
    assert_no_repeats,
    assert_prefix,
    wait_for,
    wait_until_dead,
)

pytestmark = pytest.mark.slow

RATE_PER_S = 1000.0


@pytest.fixture
def audited(tmp_path: Path) -> AuditedJob:
    return AuditedJob(tmp_path, int(RATE_PER_S * 20), RATE_PER_S, interval="0.2s")


def test_a_killed_driver_takes_its_workers_along_and_the_next_one_goes_on(
    audited: AuditedJob, start_driver: StartDriver, long: bool
) -> None:
    restore: tuple[str, ...] = ()
    for _ in range(10 if long else 2):
        driver = start_driver(audited, "processes", *restore)
        workers = driver.until("running")
        driver.until("checkpoint")
        driver.kill()
        wait_until_dead(workers)
        assert_no_repeats(audited)
        restore = ("latest",)
    audited.hurry()
    last = start_driver(audited, "processes", "latest")
    last.until("finished")
    assert last.ended()[0] == 0
    assert audited.verdict().exact, audited.verdict()
    assert not list(audited.output.rglob("*.tmp"))


def test_ctrl_c_leaves_no_worker_and_no_half_visible_output(
    audited: AuditedJob, start_driver: StartDriver
) -> None:
    driver = start_driver(audited, "processes")
    workers = driver.until("running")
    driver.until("checkpoint")
    driver.kill(signal.SIGINT)
    driver.until("interrupted")
    wait_until_dead(workers)
    code, said = driver.ended()
    assert code == 130
    assert [line.partition(":")[0] for line in said.splitlines()] == ["headrace", "headrace"]
    assert "the next run goes on from chk-" in said
    assert_prefix(audited)
    assert not list(audited.output.rglob("*.tmp"))


def test_the_older_of_two_drivers_of_a_job_stops_and_the_newer_one_is_exact(
    audited: AuditedJob, start_driver: StartDriver
) -> None:
    older = start_driver(audited, "processes")
    older.until("checkpoint")
    newer = start_driver(audited, "processes", "latest")
    reason = older.until("failed")
    assert "another coordinator of job 'audited'" in reason
    assert older.ended()[0] == 1
    audited.hurry()
    newer.until("finished")
    assert audited.verdict().exact, audited.verdict()


@pytest.mark.usefixtures("only_long")
def test_a_frozen_driver_that_wakes_finds_itself_superseded(
    audited: AuditedJob, start_driver: StartDriver
) -> None:
    older = start_driver(audited, "processes")
    older.until("checkpoint")
    older.kill(signal.SIGSTOP)
    newer = start_driver(audited, "processes", "latest")
    newer.until("checkpoint")
    older.kill(signal.SIGCONT)
    assert "another coordinator of job 'audited'" in older.until("failed")
    audited.hurry()
    newer.until("finished")
    assert audited.verdict().exact, audited.verdict()


def test_a_checkpoint_completed_by_a_driver_that_wakes_is_chosen_by_no_third_driver(
    audited: AuditedJob, start_driver: StartDriver
) -> None:
    """Frozen before it creates the metadata, until its successor has aborted the transactions."""
    first = start_driver(audited, "processes", frozen_at="metadata")
    assert first.until("frozen") == "metadata"
    second = start_driver(audited, "processes", "latest")
    second.until("running")  # it has recovered the sinks
    second.kill()
    first.kill(signal.SIGCONT)
    assert "another coordinator of job 'audited'" in first.until("failed")
    assert first.ended()[0] == 1
    late = audited.checkpoints / "audited" / "chk-3" / "metadata"
    assert late.exists()
    third = start_driver(audited, "processes", "latest")
    third.until("checkpoint")
    audited.hurry()
    third.until("finished")
    assert audited.verdict().exact, audited.verdict()


def test_a_driver_that_wakes_amid_the_recovery_of_its_sinks_deletes_nothing_of_its_successor(
    audited: AuditedJob, start_driver: StartDriver
) -> None:
    first = start_driver(audited, "processes", frozen_at="sinks")
    assert first.until("frozen") == "sinks"
    second = start_driver(audited, "processes")
    second.until("checkpoint")
    second.kill(signal.SIGSTOP)  # its writers have open files, and pre-committed ones
    open_files = {path.name for path in audited.output.rglob("*.tmp")}
    first.kill(signal.SIGCONT)
    assert "another coordinator of job 'audited'" in first.until("failed")
    assert open_files
    assert open_files <= {path.name for path in audited.output.rglob("*.tmp")}
    second.kill(signal.SIGCONT)
    audited.hurry()
    second.until("finished")
    assert audited.verdict().exact, audited.verdict()


class Proxy:
    """Passes bytes between workers and the coordinator until it is cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection, as a router that restarts does; new ones are accepted."""
        with self._lock:
            cut, self._sockets = self._sockets, []
        for each in cut:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                with self._lock:
                    self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Proxy]]:
    """Puts a proxy in front of every coordinator that is started."""
    made: list[Proxy] = []
    listen = coordinator_driver.CoordinatorDriver.listen

    def listen_behind(self: coordinator_driver.CoordinatorDriver, host: str) -> tuple[str, int]:
        made.append(Proxy(listen(self, host)))
        return made[-1].address

    monkeypatch.setattr(coordinator_driver.CoordinatorDriver, "listen", listen_behind)
    yield made
    for proxy in made:
        proxy.close()


def test_workers_cut_off_from_the_coordinator_are_started_anew(
    audited: AuditedJob, proxies: list[Proxy]
) -> None:
    handle = audited.build().start("processes")
    try:
        wait_for(lambda: handle.status().completed >= 1, "a checkpoint")
        cut_off = set(handle.status().workers.values())
        proxies[0].cut()
        wait_until_dead(sorted(cut_off))
        wait_for(lambda: handle.status().restarts >= 1, "the restart")
        wait_for(lambda: handle.status().phase is Phase.RUNNING, "the next attempt")
        assert cut_off.isdisjoint(handle.status().workers.values())
        audited.hurry()
        handle.wait(WAIT_S)
    finally:
        handle.cancel()
    kinds = [notice.kind for _, notice in handle.status().notices]
    assert NoticeKind.WORKER_LOST in kinds
    assert audited.verdict().exact, audited.verdict()


@pytest.mark.usefixtures("only_long")
def test_a_restored_job_that_had_finished_finishes_again_and_writes_nothing(
    audited: AuditedJob,
) -> None:
    audited.hurry()
    audited.build().run("processes")
    files = sorted(audited.output.iterdir())
    result = audited.build().run("processes", restore="latest")
    assert result.restarts == 0
    assert sorted(audited.output.iterdir()) == files
    assert audited.verdict().exact, audited.verdict()


def test_failing_to_listen_leaves_no_worker(
    audited: AuditedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, host: str) -> tuple[str, int]:
        raise OSError("no port is left")

    monkeypatch.setattr(coordinator_driver.CoordinatorDriver, "listen", refuse)
    with pytest.raises((OSError, hr.HeadraceError), match="no port is left"):
        audited.build().run("processes")


PROGRAM = """
import sys, threading, time
import headrace as hr

numbers = hr.read.sequence(None, rate=1000, name="numbers")
checkpoints = hr.Checkpoints(sys.argv[1], "20ms")
job = hr.Job("job", numbers.write.blackhole(name="out"), parallelism=1, checkpoints=checkpoints)
handle = job.start("processes")
handle.checkpoint()
# The main thread ends, and Python waits for this one.
threading.Thread(target=time.sleep, args=(1.0,)).start()
"""


def test_a_program_that_ends_while_its_job_runs_says_so_in_one_sentence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = (
        "the program ended while job 'job' ran: it ends at once, as if cancelled; call wait() on"
        " its handle to let it go on"
    )
    assert ended.stderr.splitlines() == [said]
