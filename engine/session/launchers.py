"""The launcher of a job's workers: threads, processes or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..contract.extras import extra
from ..contract.launcher import Incarnation, LauncherMaker, WorkerLauncher, WorkerProgram
from ..contract.options import RunOptions

_RUNNER = "the runner 'spark'"


def make_launcher(job: str, options: RunOptions, slots: int) -> WorkerLauncher:
    """Make the launcher that `options` name. Raises: UserError."""
    if options.runner == "threads":
        from ..local.threads import ThreadLauncher

        return ThreadLauncher(workers=1, entry=worker)
    if options.runner == "processes":
        from ..local.processes import ProcessLauncher

        return ProcessLauncher(workers=slots, entry=worker)
    with extra("spark", _RUNNER):
        from ..spark.launcher import SparkLauncher
        from ..spark.session import open_session, session_of_user

    user_session = session_of_user(options)
    if user_session is not None:
        return SparkLauncher(user_session, workers=slots, entry=worker)
    session = open_session(job, slots=slots, master=options.master)
    embedded = options.master is None
    return SparkLauncher(
        session, workers=slots, entry=worker, stops_session=True, embedded=embedded
    )


@contextmanager
def region_launchers(job: str, options: RunOptions, slots: int) -> Iterator[LauncherMaker]:
    """Make launchers for the regions of a job, which share a Spark session, or the process from
    which workers are forked.

    `slots`: of all regions together. What is shared ends with the last launcher.

    Raises: UserError when Spark has too few slots.
    """
    if options.runner == "threads":
        yield make_launcher
        return
    if options.runner == "processes":
        from ..local.forks import Forks
        from ..local.processes import ProcessLauncher

        forks = Forks()
        forks.enter()
        try:
            yield lambda name, settings, workers: ProcessLauncher(
                workers=workers, entry=worker, forks=forks
            )
        finally:
            forks.leave()
        return
    with extra("spark", _RUNNER):
        from ..spark.capacity import classic_context, require_slots
        from ..spark.launcher import SparkLauncher
        from ..spark.session import open_session, session_of_user
        from ..spark.shared import SharedSession

    user_session = session_of_user(options)
    spark = user_session or open_session(job, slots=slots, master=options.master)
    shared = SharedSession(spark, stops=user_session is None)
    shared.enter()
    try:
        context = classic_context(spark)
        require_slots(context, slots, timeout_s=options.workers.start_timeout_ns / 1e9)
        yield lambda name, settings, workers: SparkLauncher(
            spark, workers=workers, entry=worker, session=shared
        )
    finally:
        shared.leave()


def worker(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
    """Run a worker (an `Entry`), in its own process or thread."""
    # Not at the top: only a worker needs what it imports.
    from ..drivers.worker_process import run_worker

    run_worker(program, incarnation, host)
