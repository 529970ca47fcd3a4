"""Which launcher runs a job: threads, processes or Spark; and which one runs the job that takes its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..contract.launcher import Incarnation, WorkerLauncher
from ..contract.options import RunOptions
from ..coordinator import coordinator_events as d

#: Filled by the session once there is somebody to tell.
Exits = list[Callable[[d.CoordinatorEvent], None]]


@dataclass(frozen=True, slots=True)
class Made:
    """A launcher that was made.

    Attributes:
        exits: those who are told when a worker's process ends.
        has_room: workers can be started while those of the job before still run.
    """

    launcher: WorkerLauncher
    exits: Exits = field(default_factory=list)
    has_room: bool = True


def make_launcher(job: str, options: RunOptions, slots: int) -> Made:
    """The launcher for `options`. Raises UserError."""
    if options.runner != "spark":
        return _local(options, slots)
    from ..spark.launcher import SparkLauncher
    from ..spark.session import open_session

    if options.spark is not None:
        return Made(SparkLauncher(options.spark, workers=slots))
    session = open_session(job, slots=slots, master=options.master)
    return Made(SparkLauncher(session, workers=slots, stops_session=True))


def take_place(job: str, options: RunOptions, slots: int, before: WorkerLauncher) -> Made | None:
    """The launcher of a job that goes on where the one on `before` stops, with as many slots as it then needs.

    None: one can only be made when that one has ended, which is so where embedded Spark has to grow. Raises UserError when there is no room.
    """
    if options.runner != "spark":
        return _local(options, slots, before)
    from ..spark.launcher import SparkLauncher

    assert isinstance(before, SparkLauncher), "a rescale does not change the runner"
    ours = options.spark is None
    if ours and not before.is_open:
        return None
    if ours and options.master is None and not before.can_hold(slots):
        return None
    return Made(before.heir(slots), has_room=before.has_room_beside(slots))


def _local(options: RunOptions, slots: int, before: WorkerLauncher | None = None) -> Made:
    exits: Exits = []

    def on_exit(incarnation: Incarnation, code: int) -> None:
        reason = f"its process was killed by signal {-code}" if code < 0 else f"exit code {code}"
        for listener in exits:
            listener(d.WorkerExited(incarnation.worker, incarnation.number, reason))

    if options.runner == "threads":
        from ..local.threads import ThreadLauncher

        return Made(ThreadLauncher(workers=1, on_exit=on_exit), exits)
    from ..local.processes import ProcessLauncher

    if before is None:
        return Made(ProcessLauncher(workers=slots, on_exit=on_exit), exits)
    assert isinstance(before, ProcessLauncher), "a rescale does not change the runner"
    return Made(before.heir(slots, on_exit), exits)
