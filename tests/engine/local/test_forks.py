"""The process from which workers are forked: shared by launchers, started anew when it dies, gone
with the last of them.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.contract.launcher import Entry, Incarnation, WorkerProgram
from headrace.engine.local.processes import ProcessLauncher

from .watching import PROGRAM, WAIT_S, is_alive, unexpected, wait_for


def telling(folder: Path, name: str) -> Entry:
    """An entry that writes its process id, its parent's and a random number to
    FOLDER/NAME-WORKER.NUMBER and stays.
    """

    def entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
        import os
        import threading

        import numpy as np

        file = folder / f"{name}-{incarnation.worker}.{incarnation.number}"
        part = file.with_name(f"part-{file.name}")
        part.write_text(f"{os.getpid()} {os.getppid()} {np.random.randint(1 << 30)}")
        part.rename(file)
        threading.Event().wait()

    return entry


def told(folder: Path, name: str) -> tuple[int, int, int]:
    """Process id, parent's, and what was drawn."""
    file = folder / name
    wait_for(file.exists)
    pid, parent, drawn = map(int, file.read_text().split())
    return pid, parent, drawn


def test_workers_and_those_of_a_successor_come_from_one_process_and_draw_their_own_numbers(
    tmp_path: Path,
) -> None:
    first = ProcessLauncher(workers=2, entry=telling(tmp_path, "worker"))
    first.start(PROGRAM, unexpected)
    workers = [told(tmp_path, f"worker-{number}.0") for number in range(2)]
    second = first.successor(1)
    second._entry = telling(tmp_path, "successor")
    second.start(PROGRAM, unexpected)
    workers.append(told(tmp_path, "successor-0.0"))
    assert len({parent for _, parent, _ in workers}) == 1
    assert len({drawn for _, _, drawn in workers}) == 3
    first.stop(0.0)
    assert [is_alive(pid) for pid, _, _ in workers] == [False, False, True]
    second.stop(0.0)
    pid, template, _ = workers[2]
    assert not is_alive(pid)
    assert not is_alive(template)


def test_when_the_template_dies_its_workers_do_and_their_successors_come_from_another(
    tmp_path: Path,
) -> None:
    exits: queue.Queue[tuple[Incarnation, int]] = queue.Queue()
    launcher = ProcessLauncher(workers=1, entry=telling(tmp_path, "worker"))
    launcher.start(PROGRAM, unexpected, lambda *report: exits.put(report))
    pid, template, _ = told(tmp_path, "worker-0.0")
    os.kill(template, signal.SIGKILL)
    assert exits.get(timeout=WAIT_S) == (Incarnation(0, 0), -signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    launcher.replace(0, 1)
    _, another, _ = told(tmp_path, "worker-0.1")
    assert another not in (template, os.getpid())
    launcher.stop(0.0)


def test_a_fork_that_the_system_refuses_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A template that cannot fork: it takes no request and refuses each.
    (tmp_path / "refuses.py").write_text(
        "import os\nos.fork = lambda: (_ for _ in ()).throw(BlockingIOError(11, 'no more'))\n"
        "from headrace.engine.local.template import main\nmain()\n"
    )
    popen = subprocess.Popen

    def refusing(command: list[str], **options: object) -> object:
        return popen([sys.executable, str(tmp_path / "refuses.py")], **options)  # type: ignore[call-overload]

    monkeypatch.setattr("headrace.engine.local.forks.subprocess.Popen", refusing)
    reasons: queue.Queue[str] = queue.Queue()
    launcher = ProcessLauncher(workers=1)
    launcher.start(PROGRAM, reasons.put)
    assert "cannot start worker process 0" in reasons.get(timeout=WAIT_S)
    launcher.stop(0.0)
