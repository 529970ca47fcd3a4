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


def check_room(options: RunOptions, slots: int) -> None:
    """Refuse what a running job's runner could not carry once it has stopped. Raises UserError.

    Embedded Spark grows with the job: it is started anew with as many cores as are needed.
    """
    if options.runner != "spark" or (options.spark is None and options.master is None):
        return
    from pyspark import SparkContext

    from ..spark.capacity import require_slots

    context = SparkContext._active_spark_context
    if context is not None:
        require_slots(context, slots, timeout_s=0.0)
