"""The launcher of a job's workers: threads, processes or Spark."""

from __future__ import annotations

from ..contract.launcher import Incarnation, WorkerLauncher, WorkerProgram
from ..contract.options import RunOptions


def make_launcher(job: str, options: RunOptions, slots: int) -> WorkerLauncher:
    """Make the launcher that `options` name. Raises: UserError."""
    if options.runner == "threads":
        from ..local.threads import ThreadLauncher

        return ThreadLauncher(workers=1, entry=worker)
    if options.runner == "processes":
        from ..local.processes import ProcessLauncher

        return ProcessLauncher(workers=slots, entry=worker)
    from ..spark.launcher import SparkLauncher
    from ..spark.session import open_session

    if options.spark is not None:
        return SparkLauncher(options.spark, workers=slots, entry=worker)
    session = open_session(job, slots=slots, master=options.master)
    embedded = options.master is None
    return SparkLauncher(
        session, workers=slots, entry=worker, stops_session=True, embedded=embedded
    )


def worker(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
    """Run a worker (an `Entry`), in its own process or thread."""
    # Not at the top: only a worker needs what it imports.
    from ..drivers.worker_process import run_worker

    run_worker(program, incarnation, host)
