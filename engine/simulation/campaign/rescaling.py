"""A rescale as the live handle makes it, in a simulated world.

Workers of the next version start beside the present version's, register, and fetch files of the
newest complete checkpoint. Then the present version takes an unaligned checkpoint and ends, and the
next version begins from there. Without its workers the rescale is given up, and the present version
goes on. When the present version ends in another way, or the next version's driver dies, the early
workers go, and the job is started again as before.

A live handle differs in two ways. It begins the next version even if the job came to its end
meanwhile. And when the next version cannot begin, it starts the old parallelism again; here the
next version is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from headrace.channels.events import CheckpointMode
from headrace.recovery import assignment

from ...coordinator import coordinator_events as d
from ...drivers.early_workers import files_by_worker
from ...drivers.restore import new_tasks
from ..scheduler import MILLISECOND_NS
from .coordinator_process import CoordinatorProcess


class _Phase(Enum):
    STARTING = auto()
    FETCHING = auto()
    STOPPING = auto()
    OVER = auto()


class Rescaling:
    """A rescale.

    Args:
        before: the driver of the present version.
        after: the driver of the next version, still idle.
        take_over: called with a checkpoint's number to begin the next version.
    """

    def __init__(
        self,
        before: CoordinatorProcess,
        after: CoordinatorProcess,
        take_over: Callable[[int], None],
    ) -> None:
        self._before = before
        self.after = after
        self._take_over = take_over
        self._phase = _Phase.STARTING
        after.on_early = self._look
        after.launch()
        rng = after.env.scheduler.rng
        timeout_ns = rng.choice((3, 100, 1000)) * MILLISECOND_NS
        after.env.scheduler.after(timeout_ns, self._timeout)

    def ended(self, process: CoordinatorProcess) -> None:
        """One of the drivers has ended."""
        if self._phase is _Phase.OVER:
            return
        stopped = process.result is not None and process.result.outcome is d.Outcome.STOPPED
        if process is self._before and stopped and self._phase is _Phase.STOPPING:
            self._phase = _Phase.OVER
            if process.newest is not None:
                self._take_over(process.newest.checkpoint)
                return
        self.discard("the other driver is not there to be followed")

    def discard(self, why: str) -> None:
        """The next version does not begin."""
        self._phase = _Phase.OVER
        self.after.env.coverage.count("rescales given up")
        self.after.die(host=False, why=f"discarded: {why}")

    def _look(self) -> None:
        early = self.after.early
        if self._phase is _Phase.STARTING and early.failure:
            self.discard(early.failure)
        elif self._phase is _Phase.STARTING and not early.missing:
            self._phase = _Phase.FETCHING
            self._fetch()
        if self._phase is _Phase.FETCHING and not early.fetching:
            self._stop()

    def _fetch(self) -> None:
        """Order the files of the newest complete checkpoint; the last one will name most again."""
        env, plan = self.after.env, self.after.env.plan
        if self._before.newest is None:
            return
        tasks = new_tasks(plan)
        subtasks = assignment.assign(self._before.newest, tasks, plan.max_parallelism)
        workers = env.settings.workers
        self.after.fetch_ahead(files_by_worker(subtasks, workers=workers, slots=plan.slots))

    def _stop(self) -> None:
        self._phase = _Phase.STOPPING
        kind = d.StopKind.WITH_CHECKPOINT
        self._before.post(d.StopRequested(kind, CheckpointMode.UNALIGNED))

    def _timeout(self) -> None:
        """Stop waiting for missing workers and missing state."""
        if self._phase is _Phase.STARTING:
            self.discard("workers did not start in time")
        elif self._phase is _Phase.FETCHING:
            self._stop()
