"""The launcher of a job's workers: threads, processes or Spark."""

from __future__ import annotations

from ..contract.launcher import Incarnation, WorkerLauncher
from ..contract.options import RunOptions
from ..coordinator import coordinator_events as d


def make_launcher(job: str, options: RunOptions, slots: int) -> WorkerLauncher:
    """Make the launcher that `options` name. Raises: UserError."""
    if options.runner == "threads":
        from ..local.threads import ThreadLauncher

        return ThreadLauncher(workers=1)
    if options.runner == "processes":
        from ..local.processes import ProcessLauncher

        return ProcessLauncher(workers=slots)
    from ..spark.launcher import SparkLauncher
    from ..spark.session import open_session

    if options.spark is not None:
        return SparkLauncher(options.spark, workers=slots)
    session = open_session(job, slots=slots, master=options.master)
    embedded = options.master is None
    return SparkLauncher(session, workers=slots, stops_session=True, embedded=embedded)


def worker_exited(incarnation: Incarnation, code: int) -> d.WorkerExited:
    """Say to the coordinator how a worker ended."""
    reason = f"its process was killed by signal {-code}" if code < 0 else f"exit code {code}"
    return d.WorkerExited(incarnation.worker, incarnation.number, reason)
