"""Workers as processes: they run, their death is seen, and none survives the launcher or its
parent.

Entries are nested functions, which cloudpickle ships by value: a child cannot import this file.
"""

import os
import queue
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.engine.contract.launcher import Entry, Incarnation, WorkerProgram
from headrace.engine.local.processes import ProcessLauncher

from .watching import PROGRAM, WAIT_S, is_alive, unexpected, wait_for


def forever(folder: Path) -> Entry:
    """An entry that writes its process id to FOLDER/WORKER.NUMBER and never returns."""

    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        import os
        import threading

        name = f"{incarnation.worker}.{incarnation.number}"
        (folder / f"{name}.part").write_text(str(os.getpid()))
        (folder / f"{name}.part").rename(folder / name)
        threading.Event().wait()

    return entry


def pid_of(folder: Path, worker: int, number: int) -> int:
    path = folder / f"{worker}.{number}"
    wait_for(path.exists)
    return int(path.read_text())


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory from which nothing of ours could be imported by accident."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    return tmp_path


def test_a_killed_worker_is_noticed_replaced_and_nothing_survives_stop(elsewhere: Path) -> None:
    exits: queue.Queue[tuple[Incarnation, int]] = queue.Queue()
    launcher = ProcessLauncher(workers=2, entry=forever(elsewhere))
    launcher.start(PROGRAM, unexpected, lambda *report: exits.put(report))
    first, other = pid_of(elsewhere, 0, 0), pid_of(elsewhere, 1, 0)
    os.kill(first, signal.SIGKILL)
    assert exits.get(timeout=WAIT_S) == (Incarnation(0, 0), -signal.SIGKILL)
    launcher.replace(0, 1)
    second = pid_of(elsewhere, 0, 1)
    assert is_alive(other)
    launcher.stop(0.0)
    launcher.stop(0.0)
    assert [is_alive(pid) for pid in (first, second, other)] == [False, False, False]
    launcher.replace(1, 9)
    assert not (elsewhere / "1.9").exists()


def test_a_frozen_worker_is_killed_when_it_is_replaced(elsewhere: Path) -> None:
    launcher = ProcessLauncher(workers=1, entry=forever(elsewhere))
    launcher.start(PROGRAM, unexpected)
    frozen = pid_of(elsewhere, 0, 0)
    os.kill(frozen, signal.SIGSTOP)
    launcher.replace(0, 1)
    pid_of(elsewhere, 0, 1)
    wait_for(lambda: not is_alive(frozen))
    launcher.stop(0.0)


def test_the_secret_is_in_neither_arguments_nor_environment(elsewhere: Path) -> None:
    launcher = ProcessLauncher(workers=1, entry=forever(elsewhere))
    launcher.start(PROGRAM, unexpected)
    pid = pid_of(elsewhere, 0, 0)
    visible = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    launcher.stop(0.0)
    assert b"headrace.engine.local.template" in visible
    assert PROGRAM.secret not in visible


def test_return_and_exception_are_told_apart_and_a_large_plan_arrives(elsewhere: Path) -> None:
    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        import sys

        assert len(program.plan) == 3_000_000
        assert (program.secret, host) == (b"key", "127.0.0.1")
        assert sys.stdin.read() == ""
        if incarnation.worker == 1:
            sys.stderr.close()
            raise RuntimeError("lost")

    exits: queue.Queue[tuple[Incarnation, int]] = queue.Queue()
    launcher = ProcessLauncher(workers=2, entry=entry)
    program = WorkerProgram("job", ("127.0.0.1", 1), b"key", bytes(3_000_000), 2)
    launcher.start(program, unexpected, lambda *report: exits.put(report))
    ended = dict(exits.get(timeout=WAIT_S) for _ in range(2))
    assert ended == {Incarnation(0, 0): 0, Incarnation(1, 0): 1}
    launcher.stop(WAIT_S)


def test_a_thread_of_user_code_does_not_delay_the_end(elsewhere: Path) -> None:
    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        import atexit
        import threading

        atexit.register((elsewhere / "in-order").touch)
        threading.Thread(target=threading.Event().wait).start()

    exits: queue.Queue[tuple[Incarnation, int]] = queue.Queue()
    launcher = ProcessLauncher(workers=1, entry=entry)
    launcher.start(PROGRAM, unexpected, lambda *report: exits.put(report))
    assert exits.get(timeout=WAIT_S) == (Incarnation(0, 0), 0)
    assert (elsewhere / "in-order").exists()
    launcher.stop(WAIT_S)


def test_children_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdin=subprocess.DEVNULL, cwd="/"
    )
    try:
        pids = [pid_of(tmp_path, worker, 0) for worker in range(2)]
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_a_system_that_refuses_processes_fails_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reasons: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    launcher = ProcessLauncher(workers=2, entry=forever(tmp_path))
    launcher.start(PROGRAM, reasons.put)
    assert "cannot start worker process" in reasons.get(timeout=WAIT_S)
    launcher.stop(WAIT_S)
    assert reasons.empty()


PARENT = textwrap.dedent("""
    import sys, threading
    from pathlib import Path
    from headrace.engine.local.processes import ProcessLauncher
    from headrace.engine.contract.launcher import WorkerProgram

    folder = Path(sys.argv[1])

    def entry(program, incarnation, host):
        import os, threading
        name = f"{incarnation.worker}.{incarnation.number}"
        (folder / f"{name}.part").write_text(str(os.getpid()))
        (folder / f"{name}.part").rename(folder / name)
        threading.Event().wait()

    launcher = ProcessLauncher(workers=2, entry=entry)
    launcher.start(WorkerProgram("job", ("127.0.0.1", 1), b"secret", b"plan", 2), print)
    threading.Event().wait()
""")
