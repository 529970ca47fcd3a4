"""Which launcher runs a job: threads, processes or Spark."""

from __future__ import annotations

from collections.abc import Callable

from ..api.options import RunOptions
from ..runtime.launch import Incarnation, WorkerLauncher
from . import decisions as d

#: Filled by the session once there is somebody to tell.
Exits = list[Callable[[d.CoordinatorEvent], None]]


def make_launcher(job: str, options: RunOptions, slots: int) -> tuple[WorkerLauncher, Exits]:
    """The launcher for `options`, and the list of those who are told when a worker's process ends. Raises UserError."""
    listeners: Exits = []

    def on_exit(incarnation: Incarnation, code: int) -> None:
        reason = f"its process was killed by signal {-code}" if code < 0 else f"exit code {code}"
        for listener in listeners:
            listener(d.WorkerExited(incarnation.worker, incarnation.number, reason))

    if options.runner == "threads":
        from ..local.threads import ThreadLauncher

        return ThreadLauncher(workers=1, on_exit=on_exit), listeners
    if options.runner == "processes":
        from ..local.processes import ProcessLauncher

        return ProcessLauncher(workers=slots, on_exit=on_exit), listeners
    from ..spark.launcher import SparkLauncher
    from ..spark.session import open_session

    if options.spark is not None:
        return SparkLauncher(options.spark, workers=slots), listeners
    session = open_session(job, slots=slots, master=options.master)
    return SparkLauncher(session, workers=slots, stops_session=True), listeners
