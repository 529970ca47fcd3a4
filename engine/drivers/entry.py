"""What launchers start unless a test says otherwise. Apart from the worker itself: a driver need not import what only workers need."""

from __future__ import annotations

from ..contract.launcher import Incarnation, WorkerProgram


def default_entry(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
    """Run the real worker (an `Entry`)."""
    from .worker_process import run_worker

    run_worker(program, incarnation, host)
