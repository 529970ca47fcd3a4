"""The entry that launchers start unless a test brings another.

Apart from the worker: a driver need not import everything that a worker needs.
"""

from __future__ import annotations

from ..contract.launcher import Incarnation, WorkerProgram


def default_entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
    """Run the real worker (an `Entry`)."""
    from .worker_process import run_worker

    run_worker(program, incarnation, host)
