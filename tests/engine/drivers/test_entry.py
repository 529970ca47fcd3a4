from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.drivers import worker_process as worker_main
from headrace.engine.drivers.entry import default_entry


def test_it_runs_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[object, ...]] = []
    monkeypatch.setattr(worker_main, "run_worker", lambda *arguments: ran.append(arguments))
    program = WorkerProgram("job", ("localhost", 1), b"", b"", slots=1)
    default_entry(program, Incarnation(0, 1), "localhost")
    assert ran == [(program, Incarnation(0, 1), "localhost")]


def test_who_only_names_it_does_not_import_a_worker() -> None:
    program = (
        "import sys, headrace.engine.drivers.entry;"
        " assert 'headrace.engine.drivers.worker_process' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
